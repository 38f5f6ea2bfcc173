"""The short form: every phase with twenty nodes and scaled times holds no run twice, loses none."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scale.play import PHASES, Phase, Plan, play, scratch
from tests.scale.report import cells, details, report

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SHORT = Plan(
    nodes=20, slots=4, processes=2, seconds=2.0, wave=5, save_seconds=(0.1, 0.5),
    settings={
        "ttl_seconds": 6.0, "renew_seconds": 1.0, "grace_seconds": 2.0, "handoff_seconds": 4.0,
        "race_window_seconds": 1.0, "timeout_seconds": 1.5, "stop_budget_seconds": 1.0,
    },
)  # fmt: skip


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="scale-", dir=scratch()) as path:
        yield Path(path)


async def test_no_phase_holds_a_run_twice_or_loses_one(directory: Path) -> None:
    told: list[Phase] = []

    result = await play(SHORT, directory, told.append)

    words = "\n".join([report(SHORT, result), *(line for p in told for line in details(p))])
    assert result.broken == [], words
    assert [phase.name for phase in told] == list(PHASES)
    assert all((phase.duplicates, phase.lost) == (0, 0) for phase in told), words
    herd, vanish = told[2], told[5]
    assert herd.clients.drops["race"] > 0, "no run was handed out twice: this shows nothing"
    assert vanish.clients.events["lease_taken_over"] == 2 * SHORT.slots
    assert all(len(cells(phase)) == len(cells(herd)) for phase in told)
