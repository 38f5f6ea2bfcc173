"""Whether anything is left to train once the sweep is over."""

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


async def test_a_sweep_that_is_over_at_the_first_look_has_been_so_since_the_start() -> None:
    sweep: Any = SimpleNamespace(over=True, closed=False)
    rescues: Any = Rescues()
    prospects = Prospects(sweep, rescues, lambda: False)
    await prospects.look(quiet=True)
    assert rescues.told[0] < 60.0, "not since the machine was booted"
