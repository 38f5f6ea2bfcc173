"""What the kernel says about processes: who descends from whom, their memory and processor time.

Owns the reading of /proc. A process may vanish at any moment, so nothing here fails because one is
gone; it must never signal anybody.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _REAPED_USER, _REAPED_SYSTEM = 1, 11, 12, 13, 14
"""Fields of /proc/PID/stat, counted from the state on."""


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes. `private`: what its end would free; `pss`: with its share of what is shared."""

    private: int
    pss: int


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, parents before children; zombies do not count."""
    below = _families()
    found = list(below.get(pid, []))
    for one in found:  # grows while it is walked
        found += below.get(one, [])
    return found


def children(pid: int) -> list[int]:
    """Those right below `pid`; zombies do not count."""
    return _families().get(pid, [])


def _families() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))) and fields[0] != "Z":
            found.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
    return found


def parent(pid: int) -> int | None:
    """The parent's pid; None when the process is gone."""
    fields = _stat(pid)
    return int(fields[_PARENT]) if fields else None


def command(pid: int) -> str:
    """Its command line, or its name when that is hidden; empty when it is gone."""
    with suppress(OSError):
        line = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return line or (_PROC / str(pid) / "comm").read_text().strip()
    return ""


def memory(pid: int) -> Memory | None:
    """From smaps_rollup; None when it is gone."""
    sizes: dict[str, int] = {}
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
            name, size = line.split()[:2]
            sizes[name.rstrip(":")] = int(size) * 1024
    if not sizes:
        return None
    return Memory(sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"])


def processor_seconds(pids: Iterable[int], *, with_reaped: bool) -> float:
    """Processor time used so far; `with_reaped`: children that have ended count, too."""
    wanted = [_USER, _SYSTEM, *([_REAPED_USER, _REAPED_SYSTEM] if with_reaped else [])]
    ticks = 0
    for pid in pids:
        if fields := _stat(pid):
            ticks += sum(int(fields[number]) for number in wanted)
    return ticks / _TICKS_PER_SECOND


def _stat(pid: int) -> list[str]:
    """The fields from the state on; [] when it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []
