"""Whether anything is left to train once the sweep is over, and how often a node asks."""

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.supervisor.prospects import Prospects

pytestmark = pytest.mark.anyio


class Rescues:
    """Notes how long it was told that the sweep has been over."""

    def __init__(self) -> None:
        self.told: list[float] = []

    async def waiting(self, over_seconds: float) -> bool:
        self.told.append(over_seconds)
        return False


def world() -> tuple[Any, Rescues, Prospects]:
    """A sweep that is over, a rescue queue, and what the node makes of them."""
    sweep: Any = SimpleNamespace(over=True, closed=False)
    rescues: Any = Rescues()
    return sweep, rescues, Prospects(sweep, rescues, lambda: False)


async def test_a_sweep_that_is_over_at_the_first_look_has_been_so_since_the_start() -> None:
    _, rescues, prospects = world()
    await prospects.look(quiet=True)
    assert rescues.told[0] < 60.0, "not since the machine was booted"


async def test_while_nothing_changes_only_the_first_look_asks() -> None:
    _, rescues, prospects = world()
    for _ in range(3):
        await prospects.look(quiet=True)
    assert len(rescues.told) == 1
    assert prospects.nothing_ever


async def test_the_first_look_after_a_run_asks_at_once() -> None:
    _, rescues, prospects = world()
    await prospects.look(quiet=True)
    prospects.disturbed()
    for _ in range(3):
        await prospects.look(quiet=False)
    assert not prospects.nothing_ever
    await prospects.look(quiet=True)
    assert len(rescues.told) == 2
    assert prospects.nothing_ever


async def test_a_sweep_that_goes_on_and_ends_again_is_asked_about_at_once() -> None:
    sweep, rescues, prospects = world()
    for over in (True, False, True):
        sweep.over = over
        await prospects.look(quiet=True)
    assert len(rescues.told) == 2
