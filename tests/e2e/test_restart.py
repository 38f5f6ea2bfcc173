"""A daemon that is killed or upgraded leaves its trainings alone; the next one adopts them."""

import os
import signal
from collections.abc import Callable

from tests.support.emulator import Emulator, wait_until
from tests.support.node import Node, overlaps, sweep_config

MakeNode = Callable[..., Node]


def killed_node(
    emulator: Emulator, make_node: MakeNode, count: int, *, paused: bool = False
) -> Node:
    """A node whose daemon was SIGKILLed while its slots train."""
    sweep = emulator.create_sweep(sweep_config(count, seconds=600.0, on_term="save"))
    node = make_node(sweep, "--slots", "2", "--until-done").start()
    node.wait_running(2)
    wait_until("both runs log", lambda: len(node.records("init")) >= 2)
    if paused:
        node.ctl("pause")
    node.send(signal.SIGKILL)
    node.wait()
    return node


def test_a_restarted_daemon_adopts_living_trainings(
    emulator: Emulator, make_node: MakeNode
) -> None:
    node = killed_node(emulator, make_node, 3, paused=True)
    begun = {record["pid"] for record in node.records("begin")}
    assert begun <= set(node.processes()), "the trainings live without their daemon"
    wait_until("agents die with the daemon", lambda: not any(
        " agent --count" in line for line in node.processes().values()), 10)  # fmt: skip

    node.start()
    slots = node.wait_running(2)
    assert {slot["pid"] for slot in slots} == begun
    assert node.status()["state"] == "paused", "what people asked for holds for the successor"
    node.ctl("resume")
    node.release()

    assert node.wait() == 0, node.tail()
    assert len(node.records("begin")) == 3
    assert [view["outcome"] for view in node.history()] == ["finished"] * 3
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}
    assert overlaps(node.records()) == []
    assert len(node.events("run_adopted")) == 2
    assert not node.processes()


def test_an_exit_without_a_daemon_is_known_with_its_true_status(
    emulator: Emulator, make_node: MakeNode
) -> None:
    node = killed_node(emulator, make_node, 2)
    first, second = [record["pid"] for record in node.records("begin")]
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGTERM)
    wait_until("both have ended", lambda: not {first, second} & set(node.processes()))
    wait_until("their shims too", lambda: not any(
        "shim.py" in line for line in node.processes().values()))  # fmt: skip

    node.start("--slots", "0")
    views = wait_until("both ends are recorded", lambda: node.history()[1:] and node.history())

    found = {view["pid"]: (view["outcome"], view["signal"], view["exit_code"]) for view in views}
    assert found[first] == ("crashed", "SIGKILL", None)
    assert found[second] == ("preempted", None, 143)
    node.send(signal.SIGTERM)
    node.wait()
    assert not node.processes()


def test_a_command_that_was_claimed_but_not_started_is_started_by_the_next_daemon(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=0.5))
    emulator.set_sweep_state(sweep, "PAUSED")
    node = make_node(sweep, "--slots", "1", "--until-done", "--set", "pool.warm_agents=0",
                     "--set", "sweep.poll_seconds=0.5").start()  # fmt: skip
    wait_until("the node asks", lambda: emulator.state()["operations"].get("Heartbeat"))
    agent = node.events("agent_started")[0]["pid"]
    os.kill(agent, signal.SIGSTOP)  # it will not start what it is given
    emulator.set_sweep_state(sweep, "RUNNING")
    wait_until("the run is claimed", lambda: node.events("lease_acquired"))
    node.send(signal.SIGKILL)
    node.wait()
    assert node.records("begin") == []

    node.start()
    assert node.wait() == 0, node.tail()

    assert len(node.records("begin")) == len(node.records("end")) == 1
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}
    assert not node.processes()
