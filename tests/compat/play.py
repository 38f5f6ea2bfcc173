"""Three runs on two nodes under one version of wandb; then the judge.

Owns the play of `scripts/compat`. The daemon's own interpreter stays the same; agents, trainings
and their SDK are those of the version.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from tests.support.emulator import Emulator, start_emulator, wait_until
from tests.support.node import Node, overlaps, sweep_config
from tests.support.redis import shared_redis

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 240.0
FLAGS = ("--slots", "1", "--until-done", "--set", "rescue.backoff_seconds=0.1",
         "--set", "sweep.poll_seconds=0.5", "--set", "pool.linger_seconds=1")  # fmt: skip


@dataclass
class Verdict:
    """What came of one version."""

    version: str
    forwards: bool = False
    start: str = "exec"
    """How its agents were started: forked or executed."""
    finished: int = 0
    handed_over: int = 0
    rescued: int = 0
    wrong: str = ""


def play(version: str, python: Path, directory: Path) -> Verdict:
    """Play and judge; raises AssertionError when something does not happen in time."""
    directory.mkdir(parents=True)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    config = sweep_config(3, seconds=600.0, resumed_seconds=0.5, on_term="save", save_seconds=0.2)
    with ExitStack() as stack:
        emulator = start_emulator(directory / "emulator")
        stack.callback(emulator.stop)
        flags = (*FLAGS, "--redis-url", stack.enter_context(shared_redis(directory)))
        sweep = emulator.create_sweep(config)
        nodes = [
            Node(name, emulator, directory / "n", sweep, flags, {"PATH": path}) for name in "ab"
        ]
        for node in nodes:
            stack.callback(node.end)
        verdict = Verdict(version, _forwards(python))
        _run(verdict, *nodes)
        return _judge(verdict, emulator, *nodes)


def _forwards(python: Path) -> bool:
    """Whether its agent can forward signals to the training; we work with both."""
    done = subprocess.run([str(python.parent / "wandb"), "agent", "--help"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return "--forward-signals" in done.stdout


def _run(verdict: Verdict, a: Node, b: Node) -> None:
    a.start().wait_running(1, PATIENCE)
    wait_until("the first run logs", lambda: a.records("init"), PATIENCE)
    verdict.start = a.status()["agent_start"]["way"]
    b.start()
    wait_until("b asks for work", lambda: b.events("agent_registered"), PATIENCE)
    a.send(signal.SIGTERM)
    code = a.wait(PATIENCE)
    assert code == 75, f"a ended with {code}: {a.tail()[-500:]}"

    def next_one() -> dict[str, object] | None:
        fresh = [r for r in b.records("init") if r["node"] == "b" and r["step"] == 0]
        return fresh[-1] if fresh else None

    killed = wait_until("the second run logs", next_one, PATIENCE)
    assert killed is not None
    _kill_with_sdk(int(str(killed["pid"])))
    wait_until("it is offered", lambda: b.events("rescue_queued"), PATIENCE)
    b.release()
    code = b.wait(PATIENCE)
    assert code == 0, f"b ended with {code}: {b.tail()[-500:]}"


def _kill_with_sdk(pid: int) -> None:
    """As a machine that goes down does it; wandb 0.16 alone would report a success for the dead."""
    training = psutil.Process(pid)
    tree = [*training.children(recursive=True), training]
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _judge(verdict: Verdict, emulator: Emulator, a: Node, b: Node) -> Verdict:
    states = [run["state"] for run in emulator.state()["runs"].values()]
    outcomes = [view["outcome"] for view in [*a.history(), *b.history()]]
    verdict.finished = states.count("finished")
    verdict.handed_over = outcomes.count("preempted")
    verdict.rescued = len(b.events("rescue_taken"))
    expected = ["preempted", "finished", "crashed", "finished", "finished"]
    wrong = []
    if states != ["finished"] * 3 or sorted(outcomes) != sorted(expected):
        wrong.append(f"states {states}, outcomes {outcomes}")
    if found_overlaps := overlaps(b.records()):
        wrong.append(f"overlaps {found_overlaps}")
    if left := {**a.processes(), **b.processes()}:
        wrong.append(f"left {left}")
    verdict.wrong = "; ".join(wrong)
    return verdict
