"""The short form of scripts/soak: a server that fails in every way costs no run."""

from collections.abc import Callable

from tests.soak.play import Plan, play
from tests.support.emulator import Emulator
from tests.support.long import long_play
from tests.support.node import Node


@long_play
def test_all_runs_finish_on_a_server_that_fails_in_every_way(
    emulator: Emulator, make_node: Callable[..., Node], redis_url: str
) -> None:
    plan = Plan(runs=9, nodes=3, slots=1, rounds=1, every_seconds=1.0, long_seconds=15.0,
                stall_seconds=4.0, bound_seconds=400.0)  # fmt: skip

    def make(sweep: str, *flags: str, name: str) -> Node:
        return make_node(sweep, *flags, "--redis-url", redis_url, name=name)

    result = play(plan, emulator, make, print)

    assert result.wrong == []
    assert result.finished == 9
