"""coordinatorctl changes the node while trainings run."""

from collections.abc import Callable

from tests.support.emulator import Emulator, wait_until
from tests.support.node import Node, sweep_config

MakeNode = Callable[..., Node]


def pids(node: Node) -> dict[int, int]:
    return {slot["slot"]: slot["pid"] for slot in node.running()}


def test_scaling_touches_no_survivor_and_lowering_drains(
    emulator: Emulator, make_node: MakeNode
) -> None:
    config = sweep_config(12, seconds=600.0, on_term="save")
    node = make_node(emulator.create_sweep(config), "--slots", "1").start()
    node.wait_running(1)
    before = pids(node)

    node.ctl("scale", "4")
    node.wait_running(4)
    assert pids(node) | before == pids(node), "the first slot's training is the same process"

    at_four = pids(node)
    node.ctl("scale", "-2")
    wait_until(
        "two slots are to go", lambda: sum(s["draining"] for s in node.status()["slots"]) == 2
    )
    leaving = {slot["slot"] for slot in node.status()["slots"] if slot["draining"]}
    assert pids(node) == at_four, "draining slots train on"
    assert node.records("signal") == []
    node.release()
    wait_until("two slots are left", lambda: len(node.status()["slots"]) == 2, 180)
    assert node.records("signal") == []
    ended = {view["pid"]: view["outcome"] for view in node.runs() if view["ended"]}
    assert {ended.get(at_four[slot]) for slot in leaving} == {"finished"}

    node.ctl("scale", "0", "--down", "preempt")
    wait_until("no slot is left", lambda: node.status()["slots"] == [], 60)
    wait_until("no idle agent is kept", lambda: node.status()["warm_agents"] == 0)
    assert node.status()["desired_slots"] == 0
    node.ctl("stop")
    assert node.wait() == 0, node.tail()
    assert not node.processes()


def test_drain_finishes_what_runs_and_takes_nothing_new(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(6, seconds=600.0))
    node = make_node(sweep, "--slots", "2").start()
    node.wait_running(2)

    node.ctl("drain")
    node.release()
    node.ctl("wait", "--for", "drained", "--timeout", "120")
    begun = len(node.records("begin"))
    assert [view["outcome"] for view in node.runs()] == ["finished"] * begun
    assert begun < 6
    assert node.status()["state"] == "drained"
    assert node.status()["warm_agents"] == 0

    node.ctl("undrain")
    wait_until("work is taken again", lambda: len(node.records("begin")) > begun, 60)
    node.ctl("pause")
    wait_until("paused", lambda: node.status()["state"] == "paused")
    node.ctl("resume")
    wait_until("all runs are trained", lambda: len(node.records("end")) == 6, 180)
    node.ctl("stop")
    assert node.wait() == 0, node.tail()
    assert not node.processes()
