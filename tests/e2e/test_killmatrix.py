"""The short form of scripts/killmatrix, and the whole of it as a long play."""

from pathlib import Path

import pytest

from tests.killmatrix.cells import cell_of, cells
from tests.killmatrix.play import pairs, play, single
from tests.support.long import long_play

WHOLE = [single(cell) for cell in cells()] + pairs(8, seed=4)


def test_an_agent_that_is_killed_with_its_command_in_hand_costs_no_run(tmp_path: Path) -> None:
    assert play(single(cell_of("agent:claimed")), tmp_path).wrong == []


@long_play
@pytest.mark.parametrize("number", range(len(WHOLE)), ids=lambda number: str(WHOLE[number]))
def test_every_run_ends_correctly_whichever_process_is_killed(number: int, tmp_path: Path) -> None:
    assert play(WHOLE[number], tmp_path).wrong == []
