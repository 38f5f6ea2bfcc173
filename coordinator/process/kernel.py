"""Kernel facilities for trainings: control groups, and the count of OOM kills.

Owns one control group (version 2) for each training, below the one that was delegated to the
daemon; without delegation there are none, and other methods are used. systemd marks a
delegated group with the extended attribute `user.delegate` (CGROUP_DELEGATION.md of systemd); with
`DelegateSubgroup=` the daemon itself is one level below it. Nothing else on the machine is touched.
"""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import FileIO

PROC = Path("/proc")
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of proc_ns.h."""
LOG_SECONDS = 60.0
LOG_RECORD_BYTES = 8192
"""The longest record: CONSOLE_EXT_LOG_MAX of printk."""
_KILLED = re.compile(rb"[Kk]ill(?:ed)? process (\d+)")
"""Source: __oom_kill_process in mm/oom_kill.c; "Kill process" until Linux 5.2."""


class Kernel:
    """All methods except the constructor access files of the kernel: call them in a thread."""

    def __init__(self, root: Path | None = None, proc: Path = PROC) -> None:
        self.root = root
        """The delegated control group, if there is one."""
        self._proc = proc
        self._before = self._latest = self._node_oom_kills()

    def enclose(self, claim: str) -> str:
        """Create the control group of a training; its path, or "" if it cannot be created."""
        if self.root is None:
            return ""
        group = self._group(self.root, claim)
        try:
            group.mkdir(exist_ok=True)
        except OSError:  # it is not required
            return ""
        return str(group)

    def members(self, claim: str) -> list[int]:
        """Processes in a training's control group; zombies are not listed."""
        if self.root is None:
            return []
        file = self._group(self.root, claim) / "cgroup.procs"
        with suppress(OSError):
            return [int(pid) for pid in file.read_text(encoding="ascii").split()]
        return []

    def kill(self, claim: str) -> None:
        """SIGKILL everything in a training's control group in one step, forks included."""
        if self.root is not None:
            with suppress(OSError):
                (self._group(self.root, claim) / "cgroup.kill").write_text("1")

    def release(self, claim: str) -> None:
        """Remove the control group of a training that is gone."""
        if self.root is not None:
            with suppress(OSError):
                self._group(self.root, claim).rmdir()

    def out_of_memory(self, claim: str, signum: int | None, pid: int) -> bool:
        """True if the kernel killed a process of this training to free memory.

        Exact if the control group has counters (memory controller). Otherwise the main process
        `pid` must have died by SIGKILL, and the count of the whole node must have grown within the
        last two samples; if we can read the kernel's log, it must name the process.
        """
        exact = self._group_oom_kills(claim)
        if exact is not None:
            return exact > 0
        if signum != signal.SIGKILL or self._node_oom_kills() <= self._before:
            return False
        victims = oom_victims(self._proc)
        return victims is None or pid in victims

    def sample(self) -> None:
        """Note the node's count; called every few seconds, so that old kills prove nothing."""
        self._before, self._latest = self._latest, self._node_oom_kills()

    def _group_oom_kills(self, claim: str) -> int | None:
        if self.root is None:
            return None
        with suppress(OSError):
            return _counter(self._group(self.root, claim) / "memory.events", "oom_kill")
        return None

    def _node_oom_kills(self) -> int:
        with suppress(OSError):
            return _counter(self._proc / "vmstat", "oom_kill") or 0
        return 0

    @staticmethod
    def _group(root: Path, claim: str) -> Path:
        return root / f"run-{claim}"


def oom_victims(proc: Path = PROC, log: Path = Path("/dev/kmsg")) -> set[int] | None:
    """The processes that the kernel's log names as killed for their memory in the last minute.

    None if we cannot read it, or if its pids are not ours: a container has its own.
    """
    since = monotonic() - LOG_SECONDS
    try:
        if (proc / "self/ns/pid").stat().st_ino != FIRST_PID_NAMESPACE:
            return None
        handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found = set()
    with os.fdopen(handle, "rb", buffering=0) as records:
        while (record := _record(records)) is not None:
            about, _, words = record.partition(b";")
            if (named := _KILLED.search(words)) and int(about.split(b",")[2]) / 1e6 > since:
                found.add(int(named[1]))
    return found


def _record(records: "FileIO") -> bytes | None:
    """The next record; "" for one that was overwritten while we read, None after the last one."""
    try:
        return records.read(LOG_RECORD_BYTES)
    except BrokenPipeError:
        return b""
    except OSError:
        return None


def _counter(file: Path, name: str) -> int | None:
    """A line `NAME NUMBER` of a kernel file (cgroup-v2.rst, proc(5))."""
    for line in file.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def delegated_group(proc: Path = PROC) -> Path | None:
    """The control group that is delegated to us, or None."""
    own = _own_group(proc)
    if own is None:
        return None
    for group in (own, own.parent):
        if _is_delegated(group):
            if group != own:
                # A group with processes cannot have controllers below it, so this needs
                # DelegateSubgroup=. Without it only the count of the whole node is known.
                with suppress(OSError):
                    (group / "cgroup.subtree_control").write_text("+memory")
            return group
    return None


def _own_group(proc: Path) -> Path | None:
    try:
        mounts = (proc / "self/mountinfo").read_text(encoding="utf-8").splitlines()
        groups = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    # proc_pid_mountinfo(5): the mount point is field 5, the type follows a lone hyphen.
    points = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    paths = [line.removeprefix("0::") for line in groups if line.startswith("0::")]
    return Path(points[0]) / paths[0].lstrip("/") if points and paths else None


def _is_delegated(group: Path) -> bool:
    try:
        return os.getxattr(group, "user.delegate") == b"1" and os.access(group, os.W_OK)
    except OSError:
        return False
