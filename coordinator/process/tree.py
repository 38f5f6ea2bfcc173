"""Finds and ends whole process trees, even if their root is gone.

A process that left its parent, its group or its session still has the environment that it was
started with: each training has its own claim in COORDINATOR_RUN_CLAIM. Owns the reading of /proc
(proc(5)). The kernel reuses a pid only after all others, but each kill is still preceded by a new
check.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import anyio
import anyio.to_thread

CLAIM_VARIABLE = "COORDINATOR_RUN_CLAIM"
POLL_SECONDS = 0.02
STUCK_SECONDS = 10.0
"""No process that can be killed survives SIGKILL this long."""
PR_SET_CHILD_SUBREAPER = 36
DEAD = "ZX"
Finder = Callable[[], list[int]]


def become_subreaper() -> None:
    """Make orphans of our descendants our children, so that we see and reap them (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Seen(NamedTuple):
    """One entry of /proc; zombies (state Z) hold nothing and count as gone."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


def processes() -> Iterator[Seen]:
    """All visible processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                state, *ids = stat.rpartition(")")[2].split()[:4]
                yield Seen(int(entry.name), state, *map(int, ids))


def state_of(pid: int) -> str:
    """The letter of proc(5), /proc/PID/stat, field 3; "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def in_session(*sessions: int) -> list[int]:
    """Live processes of these sessions."""
    return [seen.pid for seen in processes() if seen.session in sessions and seen.state not in DEAD]


def sessions_of(root: int) -> set[int]:
    """The session that `root` leads, and those that processes below it have created."""
    seen = [one for one in processes() if one.state not in DEAD]
    found, sessions = {root}, {root}
    while more := {one.pid for one in seen if one.parent in found} - found:
        found |= more
        sessions |= {one.session for one in seen if one.pid in more}
    return sessions


def of_claim(claim: str, session: int | None = None) -> list[int]:
    """Live processes of one training.

    Those whose environment has `claim`, and those of the agent's session outside the agent's
    own process group (an agent gives its child its own group).
    """
    needle = f"{CLAIM_VARIABLE}={claim}".encode()
    living = [seen for seen in processes() if seen.state not in DEAD]
    return [
        seen.pid
        for seen in living
        if (seen.session == session != seen.group) or _carries(seen.pid, needle)
    ]


def _carries(pid: int, needle: bytes) -> bool:
    try:
        return needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def ended_children() -> set[int]:
    """Our ended children whose status was not collected."""
    mine = os.getpid()
    return {seen.pid for seen in processes() if seen.parent == mine and seen.state == "Z"}


def reap(pids: Iterable[int]) -> list[int]:
    """Collect the status of ended children without a waiter: orphans that became ours."""
    reaped = []
    for pid in pids:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                reaped.append(pid)
    return reaped


async def kill_all(find: Finder, stuck: Callable[[list[int]], object] | None = None) -> int:
    """SIGKILL everything that `find` finds until it finds nothing; returns the number of processes.

    Waits as long as a process is in state D. `stuck` is called once with those that are left after
    STUCK_SECONDS.
    """
    hit: set[int] = set()
    patience = monotonic() + STUCK_SECONDS
    while pids := await anyio.to_thread.run_sync(find):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        hit.update(pids)
        if stuck is not None and monotonic() > patience:
            stuck(pids)
            stuck = None
        await anyio.sleep(POLL_SECONDS)
    return len(hit)
