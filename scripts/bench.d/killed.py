"""How long until a slot trains again after a process of it was killed with SIGKILL.

Owns the measurement `agent-killed`. Compared with what supervisord and circusd (each with its
defaults) need to start a killed child again, and with a bare agent whose training was killed. All
of them run side by side, nearly idle, and are hit in turns.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import kernel
from figures import median, ratio, spread
from report import Comparison, Measurement, Report, progress
from supervisors import CIRCUSD, SUPERVISORD, supervising
from ways import AGENT, OURS, TRAINING, Job, Ours, phase, playing

from tests.support.emulator import wait_until
from tests.support.node import Node

LONG = 3600.0
STILL_SECONDS = 3.0
"""How long a training that goes on is looked at before that is believed."""
EXAMPLES = """\
examples:
  scripts/bench agent-killed               six kills of each kind: ten minutes
  scripts/bench agent-killed --kills 3 --settle 5
"""
SHORT = ("--kills", "1", "--settle", "3")
Records = Callable[[str], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Victim:
    """Who is killed, and how the next training is known."""

    way: str
    killed: str
    pids: Callable[[], list[int]]
    records: Records
    survives: bool = False
    """The training is expected to go on."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--kills", type=int, default=6, help="of each kind (default: 6)")
    parser.add_argument("--settle", type=float, default=10.0,
                        help="seconds before each kill: agents get ready")  # fmt: skip
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for each wait")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    with ExitStack() as stack:
        victims = _start(options, stack)
        found: list[list[float]] = [[] for _ in victims]
        for turn in range(options.kills):
            progress(f"agent-killed: kill {turn + 1} of {options.kills} of each kind")
            for victim, seconds in zip(victims, found, strict=True):
                sleep(options.settle + phase(turn))
                seconds.append(_kill(victim, options.patience))
    return _report(victims, found)


def _start(options: argparse.Namespace, stack: ExitStack) -> list[Victim]:
    """Everybody at work."""
    job = Job(1, LONG, LONG, wandb=False)
    ours, _ = stack.enter_context(playing(OURS, options.scratch / "ours", job))
    bare, _ = stack.enter_context(playing(AGENT, options.scratch / "bare", job))
    assert isinstance(ours, Ours)
    others = [_supervised(name, options, stack) for name in (SUPERVISORD, CIRCUSD)]
    victims = [
        Victim(OURS, "agent", lambda: _agent(ours), ours.records, survives=True),
        Victim(OURS, "training", lambda: [_training(ours.records)], ours.records),
        Victim(OURS, "shim", lambda: [_shim(ours)], ours.records),
        Victim(OURS, "training and every agent", lambda: _all_of(ours), ours.records),
        Victim(AGENT, "training", lambda: [_training(bare.records)], bare.records),
        *others,
    ]
    for victim in victims:
        wait_until(f"{victim.way} trains", partial(victim.records, "begin"), options.patience)
    return victims


def _supervised(name: str, options: argparse.Namespace, stack: ExitStack) -> Victim:
    directory = options.scratch / name
    env = {"RECORDS": str(directory / "records.jsonl")}
    command = [sys.executable, str(TRAINING), "--wandb=0", f"--low={LONG}", f"--high={LONG}"]
    stack.enter_context(supervising(name, directory, command, 1, env))
    records = _reader(directory)
    return Victim(name, "child", lambda: [_training(records)], records)


def _reader(directory: Path) -> Records:
    """Records are read as a node reads them."""
    return Node("", None, directory, "").records  # type: ignore[arg-type]


def _kill(victim: Victim, patience: float) -> float:
    """Seconds from the kill to the next training; 0 when the training went on."""
    before = _training(victim.records)
    begun = len(victim.records("begin"))
    pids = victim.pids()
    assert pids, f"{victim.way} has no {victim.killed} to be killed"
    killed_at = monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    if victim.survives:
        sleep(STILL_SECONDS)
        assert kernel.command(before), f"the training of {victim.way} did not go on"
        return 0.0
    wait_until(f"{victim.way} trains again", lambda: len(victim.records("begin")) > begun, patience)
    began: float = victim.records("begin")[begun]["at"]
    return began - killed_at


def _training(records: Records) -> int:
    pid: int = records("begin")[-1]["pid"]
    return pid


def _shim(node: Node) -> int:
    """The parent of the training, however agents were started."""
    found = kernel.parent(_training(node.records))
    assert found, "the training is gone"
    return found


def _agent(node: Node) -> list[int]:
    """The agent of the slot; none after it has been killed once."""
    pid = node.status()["slots"][0]["agent_pid"]
    return [pid] if pid and kernel.command(pid) else []


def _all_of(node: Node) -> list[int]:
    """The training and every agent of the node that lives, so that none is ready."""
    started = {event["pid"] for event in node.events("agent_started")}
    assert node.process is not None
    agents = started.intersection(kernel.descendants(node.process.pid))
    return [*agents, _training(node.records)]


def _report(victims: list[Victim], found: list[list[float]]) -> Report:
    report = Report(
        "agent-killed",
        "seconds from SIGKILL to the slot's (or child's) next training",
        ["way", "killed", "n", "p50", "p90", "max", "p50/ours"],
        notes=[
            "0: the training went on. p50/ours: against our slot whose training was killed.",
            "supervisord and circusd restart a child that they know; ours and the bare agent have",
            "to ask W&B for another run first.",
            "The trainings do not import wandb. Breakers and rescue are off for that reason.",
        ],
    )
    ours = median(found[1])
    for victim, seconds in zip(victims, found, strict=True):
        rows = spread(seconds)
        compared = None if victim.survives else ratio(rows.p50, ours)
        report.rows.append([victim.way, victim.killed, rows.count, rows.p50, rows.p90, rows.most,
                            compared])  # fmt: skip
        if victim.way != OURS:
            report.comparisons.append(
                Comparison("training killed", "s", ours, f"{victim.way}, {victim.killed}", rows.p50)
            )
    return report


KILLED = Measurement("agent-killed", "a slot trains again after SIGKILL", EXAMPLES, add_options,
                     measure, SHORT)  # fmt: skip
