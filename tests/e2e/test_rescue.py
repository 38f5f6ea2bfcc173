"""Runs that W&B will not hand out again are trained again; nothing that we were given is lost."""

import os
import signal
from collections.abc import Callable

from tests.support.emulator import Emulator, wait_until
from tests.support.long import long_play
from tests.support.node import Node, overlaps, sweep_config

MakeNode = Callable[..., Node]
SOON = ("--set", "rescue.backoff_seconds=0.1", "--set", "sweep.poll_seconds=0.5")


def test_a_training_that_is_killed_is_trained_again(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(2, seconds=600.0, resumed_seconds=0.5))
    node = make_node(sweep, "--slots", "1", "--until-done", *SOON).start()
    slot = node.wait_running(1)[0]
    wait_until("the run logs", lambda: node.records("init"))
    os.kill(slot["pid"], signal.SIGKILL)
    wait_until("it is offered", lambda: node.events("rescue_queued"))
    node.release()

    assert node.wait() == 0, node.tail()

    outcomes = [view["outcome"] for view in node.history() if view["run_id"] == slot["run_id"]]
    assert outcomes == ["crashed", "finished"]
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}
    assert len(node.records("begin")) == 3
    resumed = [record for record in node.records("begin") if record["resume"]]
    assert [record["run"] for record in resumed] == [slot["run_id"]]
    assert overlaps(node.records()) == []


@long_play
def test_a_rescue_that_redis_had_not_taken_outlives_its_killed_daemon(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(2, seconds=600.0, resumed_seconds=0.5))
    quick = ("--set", "redis.timeout_seconds=0.5", "--set", "redis.renew_seconds=2")
    node = make_node(sweep, "--slots", "1", "--until-done", *SOON, *quick).start()
    slot = node.wait_running(1)[0]
    wait_until("the run logs", lambda: node.records("init"))
    os.kill(node.events("redis_server_started")[0]["pid"], signal.SIGSTOP)
    os.kill(slot["pid"], signal.SIGKILL)
    wait_until("it cannot be offered", lambda: node.events("rescue_delayed"))
    node.send(signal.SIGKILL)
    node.wait()

    node.start()
    node.release()

    assert node.wait() == 0, node.tail()
    outcomes = [view["outcome"] for view in node.history() if view["run_id"] == slot["run_id"]]
    assert outcomes == ["crashed", "finished"]
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}
    assert not (node.state_dir / "undelivered.json").exists()


def test_a_run_that_crashes_each_time_is_given_up_after_the_attempts(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=0.2, die=9))
    node = make_node(sweep, "--slots", "1", "--set", "rescue.max_attempts=2", *SOON).start()

    wait_until("it is given up", lambda: node.events("run_given_up"), 240)

    assert len(node.records("begin")) == 3
    assert [view["outcome"] for view in node.runs()] == ["crashed"] * 3
    node.ctl("stop")
    assert node.wait() == 0


def test_runs_that_end_after_their_sweep_are_trained_again_without_agents_of_the_server(
    emulator: Emulator, make_node: MakeNode
) -> None:
    emulator.faults(early_finish=True)
    sweep = emulator.create_sweep(sweep_config(2, seconds=600.0, resumed_seconds=0.5))
    flags = ("--slots", "2", "--until-done", "--set", "pool.warm_agents=0", *SOON)
    node = make_node(sweep, *flags).start()
    node.wait_running(2)
    wait_until("both log", lambda: len(node.records("init")) == 2)
    wait_until("it is over", lambda: emulator.sweep(sweep)["state"] == "FINISHED")
    for record in node.records("init"):
        os.kill(record["pid"], signal.SIGKILL)

    assert node.wait() == 0, node.tail()

    outcomes = [view["outcome"] for view in node.history()]
    assert sorted(outcomes) == ["crashed", "crashed", "finished", "finished"]
    assert node.events("agent_admitted")
    assert emulator.sweep(sweep)["state"] == "FINISHED"
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}


def test_a_preempted_training_without_a_handler_is_trained_again_by_the_other_node(
    emulator: Emulator, make_node: MakeNode, redis_url: str
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=600.0, resumed_seconds=0.5))
    shared = ("--slots", "1", "--until-done", "--redis-url", redis_url, *SOON)
    a = make_node(sweep, *shared, name="a").start()
    a.wait_running(1)
    wait_until("the run logs", lambda: a.records("init"))
    b = make_node(sweep, *shared, name="b").start()
    wait_until("b asks for work", lambda: b.events("agent_registered"))
    a.send(signal.SIGTERM)

    assert a.wait() == 75, a.tail()
    assert b.wait() == 0, b.tail()

    assert [view["outcome"] for view in a.history()] == ["interrupted"]
    assert [view["outcome"] for view in b.history()] == ["finished"]
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}


def test_a_node_that_vanishes_has_its_runs_trained_elsewhere(
    emulator: Emulator, make_node: MakeNode, redis_url: str
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=600.0, resumed_seconds=0.5))
    short = ("redis.ttl_seconds=6", "redis.renew_seconds=1", "redis.grace_seconds=3",
             "redis.timeout_seconds=0.5", "redis.stop_budget_seconds=2",
             "redis.handoff_seconds=3")  # fmt: skip
    flags = [word for setting in short for word in ("--set", setting)]
    shared = ("--slots", "1", "--until-done", "--redis-url", redis_url, *SOON, *flags)
    a = make_node(sweep, *shared, name="a").start()
    a.wait_running(1)
    wait_until("the run logs", lambda: a.records("init"))
    b = make_node(sweep, *shared, name="b").start()
    wait_until("b asks for work", lambda: b.events("agent_registered"))
    a.end()
    run = a.records("begin")[0]["run"]
    emulator.silence_run(run)

    assert b.wait(300) == 0, b.tail()

    assert [view["outcome"] for view in b.history()] == ["finished"]
    assert len(b.records("begin")) == 2
    assert emulator.run(run)["state"] == "finished"
    (taken,) = b.events("rescue_taken")
    assert taken["lost"] is True
    assert taken["silent_seconds"] >= 9.0, "TTL and grace"


def test_rescue_off_leaves_crashed_runs_alone(emulator: Emulator, make_node: MakeNode) -> None:
    sweep = emulator.create_sweep(sweep_config(2, seconds=0.2, die=9))
    node = make_node(sweep, "--slots", "1", "--set", "rescue.enabled=false", *SOON).start()

    wait_until("both have ended", lambda: len([v for v in node.runs() if v["ended"]]) == 2, 240)

    assert len(node.records("begin")) == 2
    assert node.events("rescue_queued") == []
    node.ctl("stop")
    assert node.wait() == 0
