"""Signals the processes that train if there is a launcher between them and us.

Owns the search for them: a launcher sets variables for its workers that it does not have itself,
and processes of a worker (the SDK's service, DataLoader workers) are below it. It must never signal
those: they would end before the checkpoint is written.
"""

import os
from collections import defaultdict
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from coordinator.process import tree


def signal_workers(launcher: int, variables: AbstractSet[str], signum: int) -> list[int]:
    """Send `signum` to each worker of `launcher` once; returns their pids, possibly none."""
    signalled = []
    for pid in workers_of(launcher, variables):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            signalled.append(pid)
    return signalled


def workers_of(launcher: int, variables: AbstractSet[str]) -> list[int]:
    """The topmost processes below `launcher` with one of `variables` that it does not have."""
    below: defaultdict[int, list[int]] = defaultdict(list)
    for seen in tree.processes():
        if seen.state not in tree.DEAD:
            below[seen.parent].append(seen.pid)
    telling = variables - _names(launcher)
    found, queue = [], list(below[launcher])
    while queue:
        pid = queue.pop(0)
        if telling & _names(pid):
            found.append(pid)
        else:
            queue += below[pid]
    return sorted(found)


def _names(pid: int) -> set[str]:
    """The variables that a process was started with; none if it has ended."""
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return {entry.partition(b"=")[0].decode(errors="replace") for entry in entries}
    return set()
