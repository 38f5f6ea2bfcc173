"""The judge of a simulation: exact hold intervals of all processes on one monotonic clock.

Owns the arithmetic. It must never look at what Redis or a coordinator says.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

import msgspec


class Interval(msgspec.Struct, array_like=True):
    """One training: from the grant to the end of its last process, CLOCK_MONOTONIC seconds."""

    run_id: str
    node: str
    fence: int
    asked: float
    """When the claim was made."""
    began: float
    ended: float | None
    """None while it holds."""

    @property
    def end(self) -> float:
        """The end, or never."""
        return inf if self.ended is None else self.ended


def by_run(intervals: Iterable[Interval]) -> dict[str, list[Interval]]:
    """The intervals of each run, by begin."""
    runs = defaultdict[str, list[Interval]](list)
    for interval in sorted(intervals, key=lambda i: i.began):
        runs[interval.run_id].append(interval)
    return runs


def duplicates(intervals: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Neighbours that held one run at the same moment."""
    found = []
    for held in by_run(intervals).values():
        last = held[0]
        for interval in held[1:]:
            if interval.began < last.end:
                found.append((last, interval))
            last = max(last, interval, key=lambda i: i.end)
    return found


def handoffs(intervals: Iterable[Interval], since: float) -> list[float]:
    """Seconds from an end to the next begin, where the next claim had waited for that end."""
    return [
        after.began - before.end
        for held in by_run(intervals).values()
        for before, after in pairwise(held)
        if after.asked < before.end <= after.began and before.end >= since
    ]


def gaps(intervals: Iterable[Interval], nodes: set[str]) -> list[float]:
    """Seconds from the end of each last interval on `nodes` to the next begin elsewhere."""
    return [
        after.began - before.end
        for held in by_run(intervals).values()
        for before, after in pairwise(held)
        if before.node in nodes
    ]


def held_now(intervals: Iterable[Interval]) -> set[str]:
    """Runs that somebody holds."""
    return {interval.run_id for interval in intervals if interval.ended is None}


def share(values: Sequence[float], quantile: float) -> float:
    """The value below which that share of `values` lies; 0 without any."""
    ordered = sorted(values)
    return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] if ordered else 0.0
