"""What a percentile, a ratio and a gap are in scripts/bench."""

import runpy
from typing import Any

import pytest

from tests.support.node import REPOSITORY


def module(name: str) -> dict[str, Any]:
    """A module of scripts/bench.d that needs no other one of them."""
    return runpy.run_path(str(REPOSITORY / "scripts" / "bench.d" / f"{name}.py"))


def record(what: str, pid: int, at: float, slot: int = 0) -> dict[str, object]:
    return {"what": what, "pid": pid, "at": at, "slot": slot}


def event(name: str, seconds: int, slot: int = 0) -> dict[str, object]:
    return {"event": name, "ts": f"2026-01-01T00:00:{seconds:02}.000Z", "slot": slot}


def test_percentiles_are_interpolated_between_neighbours() -> None:
    spread = module("figures")["spread"]([3.0, 1.0, 2.0, 4.0])

    assert (spread.count, spread.p50, spread.most) == (4, 2.5, 4.0)
    assert spread.p90 == pytest.approx(3.7)
    assert module("figures")["quantile"]([7.0], 0.99) == 7.0


def test_a_ratio_above_one_means_that_ours_is_smaller() -> None:
    ratio = module("figures")["ratio"]

    assert ratio(6.0, 2.0) == 3.0
    assert ratio(0.0, 0.0) == 1.0
    assert ratio(1.0, 0.0) == float("inf")


def test_gaps_are_between_the_trainings_of_one_slot_in_the_order_of_their_beginnings() -> None:
    records = [
        record("begin", 1, 0.0), record("begin", 5, 0.5, slot=1), record("end", 1, 3.0),
        record("begin", 2, 3.25), record("end", 2, 6.0), record("begin", 3, 8.0),
    ]  # fmt: skip

    assert module("gaps")["recorded"](records) == {0: [0.25, 2.0], 1: []}


def test_each_slot_gives_as_many_gaps_and_its_first_one_is_apart() -> None:
    gaps = module("gaps")["Gaps"]()

    gaps.add([[9.0, 1.0, 2.0, 3.0], [8.0, 4.0, 5.0]], 2)

    assert gaps.first == [9.0, 8.0]
    assert gaps.later == [1.0, 2.0, 4.0, 5.0]


def test_parts_of_a_gap_are_paired_by_slot_and_a_start_without_an_end_before_is_none() -> None:
    events = [
        event("run_started", 1), event("tree_gone", 4), event("tree_gone", 5, slot=1),
        event("run_started", 6), event("run_started", 9, slot=1),
    ]  # fmt: skip

    assert module("gaps")["in_events"](events, "tree_gone", "run_started") == {0: [2.0], 1: [4.0]}
