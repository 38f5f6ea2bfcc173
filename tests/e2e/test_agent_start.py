"""Agents that are forked, and agents that are executed: the same job, seen from outside."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.emulator import Emulator, wait_until
from tests.support.node import Node, sweep_config

MakeNode = Callable[..., Node]
WANDB = Path(sys.executable).with_name("wandb")


def server_pids(node: Node) -> list[int]:
    lines = node.processes().items()
    return [
        pid for pid, line in lines if "agent_server.py" in line and " agent --count" not in line
    ]


def finished(node: Node) -> list[str]:
    return [str(view["outcome"]) for view in node.history()]


def test_by_default_agents_are_forked_and_the_job_is_done(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(4, seconds=0.5))
    node = make_node(sweep, "--slots", "2", "--until-done").start()
    assert node.wait() == 0, node.tail()
    assert finished(node) == ["finished"] * 4
    assert len(node.events("agent_server_started")) == 1
    assert node.events("agent_server_unavailable") == []
    node.wait_nothing_left()


def test_a_wrapper_around_wandb_is_executed_and_status_says_why(
    emulator: Emulator, make_node: MakeNode, tmp_path: Path
) -> None:
    wrapper = tmp_path / "wandb"
    wrapper.write_text(f'#!/bin/sh\nexec {WANDB} "$@"\n')
    wrapper.chmod(0o755)
    sweep = emulator.create_sweep(sweep_config(2, seconds=600.0))
    node = make_node(sweep, "--slots", "2", "--set", f"sweep.wandb={wrapper}").start()
    node.wait_running(2)
    reason = f"{wrapper} is not a Python script"
    assert node.status()["agent_start"] == {"way": "exec", "detail": reason}
    assert node.events("agent_server_unavailable")[0]["reason"] == reason
    assert server_pids(node) == []
    node.ctl("stop", "--down", "kill")
    assert node.wait() == 0


def test_fork_with_a_wrapper_ends_the_daemon_at_once_with_one_line(
    emulator: Emulator, make_node: MakeNode, tmp_path: Path
) -> None:
    wrapper = tmp_path / "wandb"
    wrapper.write_text(f'#!/bin/sh\nexec {WANDB} "$@"\n')
    wrapper.chmod(0o755)
    sweep = emulator.create_sweep(sweep_config(1))
    flags = ("--set", f"sweep.wandb={wrapper}", "--set", "pool.agent_start=fork")
    node = make_node(sweep, *flags).start()
    assert node.wait() == 2
    last = node.log.read_text().splitlines()[-1]
    assert last.startswith("coordinatord: [pool] agent_start: agents cannot be forked: ")


def test_trainings_and_agents_outlive_a_killed_agent_server_and_the_next_agent_has_a_new_one(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(3, seconds=600.0))
    node = make_node(sweep, "--slots", "2").start()
    before = {slot["run_id"]: slot for slot in node.wait_running(2)}
    (server,) = server_pids(node)
    os.kill(server, signal.SIGKILL)
    wait_until("it is gone", lambda: server not in node.processes())
    node.ctl("scale", "3")
    after = {slot["run_id"]: slot for slot in node.wait_running(3)}
    for run_id, slot in before.items():
        assert (after[run_id]["pid"], after[run_id]["agent_pid"]) == (
            slot["pid"],
            slot["agent_pid"],
        )
    wait_until("a new server", lambda: len(node.events("agent_server_started")) == 2)
    assert len(node.events("agent_server_lost")) == 1
    assert node.status()["agent_start"] == {"way": "fork", "detail": ""}
    node.ctl("stop", "--down", "kill")
    assert node.wait() == 0
    node.wait_nothing_left()


def test_an_agent_with_a_run_reports_to_the_server_as_often_as_a_bare_one(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=600.0))
    node = make_node(sweep, "--slots", "1").start()
    node.wait_running(1)

    def heartbeats() -> int:
        return int(emulator.state()["operations"]["Heartbeat"])

    wait_until("the spare agent rests", lambda: node.status()["warm_agents"] == 1)
    before, began = heartbeats(), time.monotonic()
    wait_until("four more", lambda: heartbeats() >= before + 4)
    assert time.monotonic() - began > 12, "5 s lie between two of one run, as from a bare agent"
    node.ctl("stop", "--down", "kill")
    assert node.wait() == 0


def test_a_stop_on_the_web_page_reaches_a_forked_agents_training(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=600.0))
    node = make_node(sweep, "--slots", "1").start()
    (slot,) = node.wait_running(1)
    emulator.stop_run(slot["run_id"])
    wait_until("it has ended", lambda: any(view["ended"] for view in node.runs()))
    assert node.runs()[0]["outcome"] == "cancelled"
    node.ctl("stop")
    assert node.wait() == 0


def test_a_wandb_that_is_upgraded_under_the_daemon_is_imported_again(
    emulator: Emulator, make_node: MakeNode, tmp_path: Path
) -> None:
    script = shutil.copy(WANDB, tmp_path / "wandb")
    sweep = emulator.create_sweep(sweep_config(2, seconds=600.0))
    node = make_node(sweep, "--slots", "1", "--set", f"sweep.wandb={script}").start()
    node.wait_running(1)
    Path(script).touch()
    node.ctl("scale", "2")
    node.wait_running(2)
    wait_until("a new server", lambda: len(node.events("agent_server_started")) == 2)
    assert len(node.events("agent_server_outdated")) == 1
    wait_until("the old one is gone", lambda: len(server_pids(node)) == 1)
    node.ctl("stop", "--down", "kill")
    assert node.wait() == 0
