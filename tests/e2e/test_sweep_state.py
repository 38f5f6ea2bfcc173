"""The sweep's own state: resumed when it should be, changed by people, deleted, without work."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.emulator import Emulator, wait_until
from tests.support.long import long_play
from tests.support.node import Node, sweep_config

MakeNode = Callable[..., Node]
POLL = ("--slots", "1", "--set", "sweep.poll_seconds=0.5", "--set", "pool.warm_agents=0")
SAVING: dict[str, Any] = {"seconds": 600.0, "on_term": "save", "save_seconds": 0.3}


def outcomes(node: Node) -> list[str]:
    """Of the stays that have ended, oldest first."""
    return [event["outcome"] for event in node.events("run_ended")]


def wait_outcomes(node: Node, *expected: str) -> None:
    wait_until(f"outcomes {expected}", lambda: outcomes(node) == list(expected))


def wait_logging(node: Node, count: int = 1) -> None:
    """Until so many trainings have begun; reading files costs less than asking the daemon."""
    wait_until(f"{count} trainings log", lambda: len(node.records("init")) == count)


def state(emulator: Emulator, sweep: str) -> Any:
    return emulator.sweep(sweep)["state"]


def wandb_sweep(node: Node, option: str) -> None:
    """What a person types."""
    subprocess.run(["wandb", "sweep", option, node.sweep], env=node.environment(),
                   cwd=node.directory, capture_output=True, check=True, timeout=60)  # fmt: skip


def test_a_sweep_that_ended_while_a_run_of_it_waits_is_resumed(
    emulator: Emulator, make_node: MakeNode
) -> None:
    emulator.faults(early_finish=True)
    sweep = emulator.create_sweep(sweep_config(1, resumed_seconds=0.3, **SAVING))
    flags = (*POLL, "--until-done", "--set", "sweep.resume_sweep=true")
    node = make_node(sweep, *flags).start()
    wait_logging(node)
    assert state(emulator, sweep) == "FINISHED"

    node.ctl("preempt", "0")

    assert node.wait() == 0, node.tail()
    assert [view["outcome"] for view in node.history()] == ["preempted", "finished"]
    assert [event["queued"] for event in node.events("sweep_resumed")] == [1]
    (resumed,) = emulator.events("sweep_state", state="RUNNING")
    assert resumed["cause"] == "user"
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}


def test_a_sweep_that_a_person_stopped_is_resumed_by_that_person_alone(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, resumed_seconds=0.3, **SAVING))
    node = make_node(sweep, *POLL, "--set", "sweep.resume_sweep=true").start()
    wait_logging(node)

    assert node.ctl("sweep", "stop")["answer"] == "done"
    assert state(emulator, sweep) == "FINISHED"
    failed = node.ctl("sweep", "pause", check=1)
    assert "Cannot pause finished sweep" in failed["error"]
    node.ctl("sweep", "resume")
    emulator.set_sweep_state(sweep, "FINISHED")  # it ended by itself
    assert "over already" in node.ctl("sweep", "stop")["message"]

    node.ctl("preempt", "0")
    wait_outcomes(node, "preempted")
    wait_until("it is left alone", lambda: node.events("sweep_not_resumed"))
    assert "coordinatorctl sweep stop" in node.events("sweep_not_resumed")[0]["reason"]
    assert state(emulator, sweep) == "FINISHED"

    node.ctl("sweep", "resume")
    wait_outcomes(node, "preempted", "finished")
    assert node.events("sweep_resumed") == []
    node.ctl("stop")
    assert node.wait() == 0


@long_play
def test_a_cancelled_sweep_lets_trainings_save_first_if_configured_or_requested(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(3, **SAVING))
    node = make_node(sweep, *POLL, "--set", "preemption.graceful_cancel=true").start()
    wait_logging(node)

    wandb_sweep(node, "--cancel")  # the server's `exit` to the agent is preceded by a signal

    wait_outcomes(node, "cancelled")
    assert len(node.records("saved")) == 1
    node.ctl("sweep", "resume")
    wait_logging(node, 2)

    node.ctl("sweep", "cancel", "--graceful", "--grace", "60s")  # before the server is asked

    assert outcomes(node)[0] == "cancelled"
    assert len(node.records("saved")) == 2
    assert state(emulator, sweep) == "CANCELED"
    seen = node.status()
    assert (seen["state"], seen["upstream"]["sweep_state"]) == ("running", "CANCELED")
    node.ctl("stop")
    assert node.wait() == 0
    assert len(node.records("begin")) == 2


def test_a_404_is_asked_again_and_a_deleted_sweep_ends_the_daemon_after_its_trainings(
    emulator: Emulator, make_node: MakeNode, tmp_path: Path
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=600.0))
    emulator.faults({"kind": "http", "op": "SweepState", "status": 404, "count": 1})
    node = make_node(sweep, *POLL, "--slots", "2").start()
    wait_logging(node)
    emulator.faults(
        {"kind": "http", "op": "Heartbeat", "status": 404, "count": 1, "idle": True},
        {"kind": "http", "op": "SweepState", "status": 404, "count": 1},
    )
    wait_until("the idle slot meets it", lambda: node.events("claim_failed"))
    wait_until("it is over", lambda: not emulator.state()["faults"])
    assert node.events("sweep_deleted") == []

    gone = ("Heartbeat", "SweepState", "SweepWithRuns", "CreateAgent")
    emulator.faults(*({"kind": "http", "op": name, "status": 404} for name in gone))

    wait_until("the deletion is believed", lambda: node.events("sweep_deleted"))
    assert [slot["state"] for slot in node.running()] == ["running"]
    node.release()
    assert node.wait() == 2
    assert "the server no longer has this sweep" in node.tail()
    assert [view["outcome"] for view in node.history()] == ["finished"]
    node.wait_nothing_left()


def test_a_sweep_without_work_is_waited_for_until_the_idle_timeout_ends_the_daemon(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1))
    emulator.set_sweep_state(sweep, "PAUSED")
    node = make_node(sweep, *POLL, "--set", "pool.idle_timeout_seconds=9").start()

    assert node.wait() == 0, node.tail()

    assert node.records() == []
    assert node.events("idle_timeout")[0]["sweep_state"] == "PAUSED"
    assert node.events("agent_registered")
