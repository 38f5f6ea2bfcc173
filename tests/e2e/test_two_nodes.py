"""Several nodes, one Redis, a server that hands re-queued runs out to every idle agent."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.emulator import Emulator, start_emulator, wait_until
from tests.support.node import Node, overlaps, sweep_config

MakeNode = Callable[..., Node]
QUICK = ("--set", "sweep.poll_seconds=0.5", "--until-done")


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """A racy server: a re-queued run goes to every idle agent for eight seconds."""
    running = start_emulator(tmp_path / "emulator", "--racy-window", "8")
    yield running
    running.stop()


def preempt_one_node(emulator: Emulator, make_node: MakeNode, redis_url: str) -> tuple[Node, Node]:
    """Four runs on two nodes; node a is preempted while node b has two free slots; all ends."""
    config = sweep_config(4, seconds=600.0, resumed_seconds=6.0, on_term="save")
    sweep = emulator.create_sweep(config)
    shared = ("--redis-url", redis_url, *QUICK)
    a = make_node(sweep, "--slots", "2", *shared, name="a").start()
    a.wait_running(2)
    b = make_node(sweep, "--slots", "4", *shared, name="b").start()
    wait_until("all four runs trained", lambda: len(a.records("init")) == 4, 180)
    a.send(signal.SIGTERM)
    assert a.wait() == 75, a.tail()
    a.release()
    assert b.wait() == 0, b.tail()
    return a, b


def test_runs_preempted_on_one_node_resume_on_the_other_exactly_once(
    emulator: Emulator, make_node: MakeNode, redis_url: str
) -> None:
    a, b = preempt_one_node(emulator, make_node, redis_url)

    state = emulator.state()
    duplicates = emulator.events("command", duplicate=True)
    assert duplicates, "the server handed out no duplicate: the test shows nothing"
    assert {run["state"] for run in state["runs"].values()} == {"finished"}
    assert overlaps(a.records()) == []
    preempted = [view["run_id"] for view in a.history() if view["outcome"] == "preempted"]
    resumed = [record["run"] for record in a.records("begin") if record["resume"]]
    assert len(preempted) == 2
    assert sorted(resumed) == sorted(preempted)
    assert len(a.records("begin")) == 4 + len(resumed)
    assert {event["reason"] for event in b.events("claim_dropped")} <= {"race", "finished"}
    assert b.events("claim_dropped")
    assert not a.processes()
    assert not b.processes()


def test_the_checker_detects_overlaps_of_the_same_job_with_leases_off(
    emulator: Emulator, make_node: MakeNode
) -> None:
    a, _ = preempt_one_node(emulator, make_node, "off")

    assert emulator.events("command", duplicate=True)
    assert overlaps(a.records()) != []
    assert len(a.records("begin")) > 4 + 2


def test_a_resume_for_a_run_that_has_finished_here_starts_nothing(
    emulator: Emulator, make_node: MakeNode, redis_url: str
) -> None:
    emulator.faults(racy_window=60)
    config = sweep_config(2, seconds=600.0, resumed_seconds=0.5, on_term="save")
    sweep = emulator.create_sweep(config)
    node = make_node(sweep, "--slots", "1", "--redis-url", redis_url, *QUICK).start()
    node.wait_running(1)
    wait_until("the run logs", lambda: node.records("init"))
    node.ctl("preempt", "all")
    wait_until("the run was preempted", lambda: node.records("saved"))
    node.release()

    assert node.wait() == 0, node.tail()

    assert len(node.records("begin")) == 3
    dropped = node.events("claim_dropped")
    assert "finished" in {event["reason"] for event in dropped}
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}


def test_a_claim_waits_for_a_holder_that_is_closing_down(
    emulator: Emulator, make_node: MakeNode, redis_url: str
) -> None:
    config = sweep_config(1, seconds=60.0, resumed_seconds=0.5, on_term="save", close_seconds=5.0,
                          save_seconds=0.1)  # fmt: skip
    sweep = emulator.create_sweep(config)
    shared = ("--redis-url", redis_url, "--slots", "1",
              "--set", "redis.race_window_seconds=1", *QUICK)  # fmt: skip
    a = make_node(sweep, *shared, name="a").start()
    a.wait_running(1)
    wait_until("the run logs", lambda: a.records("init"))
    b = make_node(sweep, *shared, name="b").start()
    wait_until("b asks for work", lambda: b.status().get("warm_agents"))
    a.send(signal.SIGTERM)

    assert a.wait() == 75, a.tail()
    assert b.wait() == 0, b.tail()

    first, second = a.records("begin")
    saved, ended = a.records("saved")[0], a.records("end")[0]
    claimed = b.events("run_claimed")[0]
    assert (first["node"], second["node"]) == ("a", "b")
    assert first["run"] == second["run"] == claimed["run_id"]
    assert second["at"] > ended["at"] > saved["at"] + 5
    assert claimed["ts"] < a.events("tree_gone")[0]["ts"] < b.events("lease_acquired")[0]["ts"]
    assert overlaps(a.records()) == []
