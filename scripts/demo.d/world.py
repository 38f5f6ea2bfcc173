"""The world of the demo: one directory, and the processes that are started in it.

Owns their environment, their start and their end. Every process below carries a mark in its
environment, so "nothing is left" can be asked of the kernel, and the end needs no list of pids.
Nothing outside the directory is written; nothing but loopback is spoken to.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from subprocess import DEVNULL

import anyio
from anyio.abc import Process

import coordinator
from coordinator.errors import CoordinatorError
from coordinator.redis_server import find_server

MARK = "COORDINATOR_RUN_DEMO"
"""coordinatord passes over variables that begin with COORDINATOR_RUN_."""
API_KEY = "0123456789" * 4
"""Well-formed; the emulator takes any such key."""
LONGEST_ROOT = 60
"""Bytes. The path of a unix socket may have 107, and the longest that we add has 40."""
START_SECONDS = 60.0
END_SECONDS = 20.0
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")


class DemoError(CoordinatorError):
    """The demo cannot go on: something did not happen in time, or a process ended that must not."""


@dataclass(slots=True)
class World:
    """See the module."""

    root: Path
    mark: str = field(default_factory=lambda: token_hex(8))
    url: str = ""
    """The emulator's address, once it runs."""
    redis_url: str = ""

    @property
    def work(self) -> Path:
        """Where agents and trainings run, and where wandb puts its folder."""
        return self.root / "work"

    @property
    def checkpoints(self) -> Path:
        """One file for each run, on a disk that both nodes see."""
        return self.root / "checkpoints"

    @property
    def records(self) -> Path:
        """What the training processes wrote about themselves."""
        return self.root / "records.jsonl"

    @property
    def server_history(self) -> Path:
        """What the emulator did."""
        return self.root / "server.jsonl"

    def log(self, name: str) -> Path:
        """The output of one of our processes."""
        return self.root / f"{name}.log"

    def environment(self, node: str = "") -> dict[str, str]:
        """An environment that knows this world and nothing of the user's account."""
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        package = str(Path(coordinator.__file__).parents[1])
        return kept | {
            "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}",
            "PYTHONPATH": package,
            "PYTHONUNBUFFERED": "1",
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "NETRC": str(self.root / "home" / "netrc"),
            "NO_PROXY": "127.0.0.1",
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": API_KEY,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_X_DISABLE_STATS": "true",
            "DEMO_CHECKPOINTS": str(self.checkpoints),
            "DEMO_RECORDS": str(self.records),
            "DEMO_NODE": node,
            MARK: self.mark,
        }

    async def start(self, name: str, command: Sequence[str], node: str = "") -> Process:
        """Start a process in a session of its own: a terminal's Ctrl-C is for the demo alone."""
        with self.log(name).open("ab") as log:
            return await anyio.open_process(
                list(command), stdin=DEVNULL, stdout=log, stderr=log, cwd=self.work,
                env=self.environment(node), start_new_session=True,
            )  # fmt: skip

    async def output(self, command: Sequence[str]) -> str:
        """Run a command to its end. Raises DemoError with its words when it fails."""
        with anyio.fail_after(START_SECONDS):
            done = await anyio.run_process(
                list(command), cwd=self.work, env=self.environment(), check=False
            )
        text = (done.stdout + done.stderr).decode(errors="replace")
        if done.returncode != 0:
            raise DemoError(f"{' '.join(command)}: exit code {done.returncode}: {text[-2000:]}")
        return text

    async def start_emulator(self, *flags: str) -> Process:
        """Start a W&B backend on a free port of the loopback interface."""
        ready = self.root / "server.url"
        command = [sys.executable, "-m", "coordinator.emulator", "--port", "0", "--ready-file",
                   str(ready), "--history-file", str(self.server_history), *flags]  # fmt: skip
        process = await self.start("server", command)
        await self._until_there(process, "server", ready)
        self.url = ready.read_text(encoding="utf-8")
        return process

    async def start_redis(self) -> Process:
        """Start the server that the nodes share for their leases."""
        socket = self.root / "redis.sock"
        # Its title would overwrite the environment by which we find what we have started.
        command = [str(find_server()), "--port", "0", "--unixsocket", str(socket), "--save", "",
                   "--dir", str(self.root), "--set-proc-title", "no"]  # fmt: skip
        process = await self.start("redis", command)
        await self._until_there(process, "redis", socket)
        self.redis_url = f"unix://{socket}"
        return process

    async def _until_there(self, process: Process, name: str, file: Path) -> None:
        with anyio.move_on_after(START_SECONDS):
            while not await anyio.Path(file).exists():
                if process.returncode is not None:
                    raise DemoError(f"{name} ended at once: {tail(self.log(name))}")
                await anyio.sleep(0.05)
            return
        raise DemoError(f"{name} does not start: {tail(self.log(name))}")

    def processes(self) -> dict[int, str]:
        """Living processes (zombies do not count) of this world, with their command lines."""
        return marked(self.mark)


def marked(mark: str) -> dict[int, str]:
    """Living processes whose environment carries `mark`."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # it ended meanwhile, or it is somebody else's
            if needle not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            found[int(entry.name)] = command.decode(errors="replace").strip()
    return found


def tail(file: Path) -> str:
    """The end of a log, for a message."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
    return ""


def _make_root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="coordinator-demo-"))
    if len(os.fsencode(root)) > LONGEST_ROOT:
        root.rmdir()
        root = Path(tempfile.mkdtemp(prefix="coordinator-demo-", dir="/tmp"))
    for name in ("home", "work", "checkpoints", "tmp"):
        (root / name).mkdir()
    return root


@asynccontextmanager
async def make_world(*, keep: bool) -> AsyncIterator[World]:
    """A world that is gone afterwards, its processes always, its directory unless `keep`."""
    world = World(_make_root())
    try:
        yield world
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_SECONDS):
            await _end_all(world)
        if not keep:
            shutil.rmtree(world.root, ignore_errors=True)


async def _end_all(world: World) -> None:
    """SIGKILL until nothing is left: a process may be started while we look."""
    while left := world.processes():
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await anyio.sleep(0.05)
