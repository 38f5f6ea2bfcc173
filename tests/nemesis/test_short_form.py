"""The short form: every fault for a moment on real stacks, and checks that violations are found."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nemesis.play import Plan, chosen, play
from tests.nemesis.report import report
from tests.nemesis.verdict import Result
from tests.nemesis.world import SETTINGS, quick_place

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEED = 20


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nemesis-", dir=quick_place()) as path:
        yield Path(path)


def short(fault: str, seconds: float = 0.5, **more: object) -> Plan:
    plan = Plan(chosen(fault, long=False), seconds, 0.0, long=False, seed=SEED)
    return replace(plan, **more)  # type: ignore[arg-type]


def words(result: Result) -> str:
    return "\n" + report(result, SEED)


def found(result: Result) -> int:
    return sum(len(row.overlaps) for row in result.rows)


async def test_no_short_fault_makes_an_overlap_or_loses_a_run(directory: Path) -> None:
    result = await play(short("all", together=True), directory)

    assert result.broken == [], words(result)
    played = {name for row in result.rows for name in row.fault.split(" + ")}
    left_out = {fault.name for fault in chosen("all", long=False)} - played
    assert all("clock" in name for name in left_out) if result.skipped else not left_out
    assert result.facts["duplicates"], "the driver handed out no duplicate: this shows nothing"


async def test_an_overlap_of_a_long_fault_ends_soon_after_contact_returns(directory: Path) -> None:
    result = await play(short("link black hole, long", long=True), directory)

    assert result.broken == [], words(result)


async def test_strict_leases_make_no_overlap_on_a_long_partition(directory: Path) -> None:
    strict = replace(SETTINGS, on_lease_loss="strict")
    plan = short("link black hole, long", long=True, settings=strict)

    result = await play(plan, directory)

    assert found(result) == 0, words(result)
    assert result.broken == [], words(result)


async def test_the_checker_detects_overlaps_after_a_wipe_without_settling(directory: Path) -> None:
    for _ in range(3):  # a wipe that meets no hand-out in its seconds shows nothing
        result = await play(short("redis wiped", 3.0, mode="no-settling"), directory)
        if found(result):
            break

    assert found(result) > 0, words(result)
    assert result.broken


async def test_the_checker_detects_overlaps_without_leases(directory: Path) -> None:
    result = await play(short("none", 1.5, mode="no-leases"), directory)

    assert found(result) > 0, words(result)
    assert result.broken
