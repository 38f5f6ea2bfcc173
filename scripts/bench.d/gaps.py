"""Gaps between the trainings of a slot, from what trainings recorded and from a daemon's events.

Owns which gaps count. Each slot gives the same number, however slow it was, and the first gap of a
slot is kept apart: it has cold caches and agents that are still starting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

Record = Mapping[str, Any]


@dataclass(slots=True)
class Gaps:
    """In seconds."""

    first: list[float] = field(default_factory=list)
    """The first of each slot."""
    later: list[float] = field(default_factory=list)
    """The next `count` of each slot."""

    def add(self, slots: Iterable[list[float]], count: int) -> None:
        """Take what counts of each slot's gaps in their order."""
        for gaps in slots:
            self.first += gaps[:1]
            self.later += gaps[1 : count + 1]


def recorded(records: Iterable[Record]) -> dict[int, list[float]]:
    """By slot: from the last word of each training to the first of the next one."""
    stays: dict[int, dict[int, dict[str, float]]] = {}
    for record in records:
        stays.setdefault(record["slot"], {}).setdefault(record["pid"], {})[record["what"]] = record[
            "at"
        ]
    return {slot: _between(list(by_pid.values())) for slot, by_pid in stays.items()}


def _between(stays: list[dict[str, float]]) -> list[float]:
    stays.sort(key=lambda stay: stay["begin"])
    return [after["begin"] - before["end"] for before, after in pairwise(stays)]


def in_events(events: Iterable[Record], begin: str, end: str) -> dict[int, list[float]]:
    """By slot: from each event `begin` to the next event `end`, by the daemon's own clock."""
    found: dict[int, list[float]] = {}
    since: dict[int, float] = {}
    for event in events:
        if event["event"] == begin:
            since[event["slot"]] = seconds_of(event)
        elif event["event"] == end and event["slot"] in since:
            taken = seconds_of(event) - since.pop(event["slot"])
            found.setdefault(event["slot"], []).append(taken)
    return found


def seconds_of(event: Record) -> float:
    """The wall time of a daemon's event in seconds since 1970."""
    return datetime.fromisoformat(event["ts"]).timestamp()
