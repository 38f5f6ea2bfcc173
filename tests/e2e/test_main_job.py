"""The main job on one node: real wandb command line, embedded Redis, real processes."""

from collections.abc import Callable

from tests.support.emulator import Emulator
from tests.support.node import Node, overlaps, sweep_config

MakeNode = Callable[..., Node]


def test_a_grid_of_six_runs_on_two_slots_finishes_and_leaves_nothing(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(6, seconds=1.0))
    node = make_node(sweep, "--slots", "2", "--until-done").start()

    assert node.wait() == 0, node.tail()

    states = [run["state"] for run in emulator.state()["runs"].values()]
    assert states == ["finished"] * 6
    assert not node.processes()
    assert len(node.records("begin")) == len(node.records("end")) == 6
    assert overlaps(node.records()) == []
    assert [view["outcome"] for view in node.history()] == ["finished"] * 6
    assert emulator.unknown() == []
