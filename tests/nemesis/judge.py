"""The judge: what the trainings' own records prove about overlaps and fences.

Owns the reading of the record files (`training.py` writes them) and the interval arithmetic. All
times are CLOCK_MONOTONIC seconds of this machine, the one clock that all processes share. It must
never look at what a coordinator says of itself.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stay:
    """One training process: it held `run_id` from `began` to `ended`."""

    run_id: str
    node: str
    pid: int
    fence: int
    began: float
    ended: float
    """Its last sign of life, so an overlap that is reported is an overlap that happened."""
    state: str
    """"alive" for a process that was killed, or lives."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two processes that held one run at the same time."""

    first: Stay
    second: Stay

    @property
    def began(self) -> float:
        """When the second joined."""
        return max(self.first.began, self.second.began)

    @property
    def ended(self) -> float:
        """When one of them was gone."""
        return min(self.first.ended, self.second.ended)

    @property
    def seconds(self) -> float:
        """How long both lived."""
        return self.ended - self.began


def read_stay(path: Path) -> Stay | None:
    """One record; None when the process has not begun."""
    try:
        head, last_word = path.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ValueError):
        return None
    facts, (last, state) = json.loads(head), last_word.split()
    return Stay(
        run_id=facts["run"],
        node=facts["node"],
        pid=facts["pid"],
        fence=int(facts["fence"]),
        began=facts["began"] / 1e9,
        ended=int(last) / 1e9,
        state=state,
    )


def read_stays(directory: Path) -> list[Stay]:
    """Every record in `directory`, by begin."""
    found = [read_stay(path) for path in directory.iterdir()]
    return sorted((stay for stay in found if stay), key=lambda stay: stay.began)


def by_run(stays: Iterable[Stay]) -> dict[str, list[Stay]]:
    """The stays of each run, by begin."""
    runs = defaultdict[str, list[Stay]](list)
    for stay in sorted(stays, key=lambda stay: stay.began):
        runs[stay.run_id].append(stay)
    return runs


def overlaps(stays: Iterable[Stay]) -> list[Overlap]:
    """Every pair that lived at the same time, by begin."""
    pairs = (
        Overlap(first, second)
        for group in by_run(stays).values()
        for first, second in combinations(group, 2)
    )
    return sorted((pair for pair in pairs if pair.seconds > 0), key=lambda pair: pair.began)


def fence_faults(stays: Iterable[Stay]) -> list[tuple[Stay, Stay]]:
    """Neighbours in time whose fence did not grow."""
    return [
        (before, after)
        for group in by_run(stays).values()
        for before, after in pairwise(group)
        if after.fence <= before.fence
    ]


def busy_seconds(stays: Iterable[Stay], began: float, ended: float) -> float:
    """Seconds of training between two moments, summed over all processes."""
    return sum(max(0.0, min(s.ended, ended) - max(s.began, began)) for s in stays)


def longest(found: Sequence[Overlap]) -> float:
    """Seconds of the longest overlap; 0 when there is none."""
    return max((overlap.seconds for overlap in found), default=0.0)
