"""How long a preempted run waits from its end on one node to its next training on the other.

Owns the measurement `handoff`: two daemons of ours, one Redis, one run that goes to and fro. It
begins when the daemon reports that the tree is gone, and ends with the first word of the training
on the other node. Beside it, in turns, the bare start of a Python process.
"""

import argparse
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from figures import ratio, spread
from gaps import seconds_of
from report import Comparison, Measurement, Report, progress
from ways import Job, phase

from tests.support.emulator import start_emulator, wait_until
from tests.support.node import Node
from tests.support.redis import shared_redis

LONG = 600.0
ASKS, WAITS = "asks W&B", "waits for it"
PYTHON = "python -c pass"
PARTS = {"claimed": "run_claimed", "leased": "lease_acquired", "started": "run_started"}
PYTHON_STARTS = 3
"""For each hand-off."""
EXAMPLES = """\
examples:
  scripts/bench handoff                  six hand-offs of each kind, defaults of the daemon
  scripts/bench handoff --hops 4 --kinds waits
  scripts/bench handoff --poll 0.5       a daemon that asks W&B for work more often
"""
SHORT = ("--hops", "1", "--kinds", "asks", "--poll", "0.5", "--settle", "0")


@dataclass(slots=True)
class Hops:
    """Seconds since the tree was gone, each part as a list; negative: it had happened before."""

    total: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PARTS})
    since_end: list[float] = field(default_factory=list)
    """From the last word of the training instead, by the trainings' clock alone."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--hops", type=int, default=6, help="of each kind (default: 6)")
    parser.add_argument("--kinds", nargs="+", choices=["asks", "waits"],
                        default=["asks", "waits"])  # fmt: skip
    parser.add_argument("--poll", type=float, help="[sweep] poll_seconds (default: the daemon's)")
    parser.add_argument("--settle", type=float, default=30.0,
                        help="seconds that the other node has been idle (30)")  # fmt: skip
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for each wait")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    report = Report(
        "handoff",
        "seconds from the end of a preempted run's tree to its training on another node",
        ["the other node", "until", "n", "p50", "p90", "max", "p50/python"],
        notes=[
            f"'{ASKS}': it has a free slot, and asks for work every poll_seconds.",
            f"'{WAITS}': it has been given the run and waits for the holder's processes to end.",
            "Claimed, leased, started: by the daemon's events. Negative: before the tree was gone.",
        ],
    )
    bare: list[float] = []
    for kind in options.kinds:
        hops = _play(options, kind, bare)
        _rows(report, ASKS if kind == "asks" else WAITS, hops, bare)
    found = spread(bare)
    report.rows.append(["-", PYTHON, found.count, found.p50, found.p90, found.most, 1.0])
    return report


def _rows(report: Report, kind: str, hops: Hops, bare: list[float]) -> None:
    python = spread(bare).p50
    named = {**hops.parts, "training's first word": hops.total,
             "the same, from its last word": hops.since_end}  # fmt: skip
    for name, values in named.items():
        found = spread(values)
        compared = ratio(found.p50, python) if values is hops.total else None
        report.rows.append([kind, name, found.count, found.p50, found.p90, found.most, compared])
    report.comparisons.append(
        Comparison(f"hand-off, the other node {kind}", "s", spread(hops.total).p50, PYTHON, python)
    )


def _play(options: argparse.Namespace, kind: str, bare: list[float]) -> Hops:
    """All hops of one kind."""
    directory = options.scratch / kind
    poll = () if options.poll is None else ("--set", f"sweep.poll_seconds={options.poll:g}")
    # Until the run is over on W&B and a while longer, so that the other node has it by then.
    close = 2 * (options.poll or 5.0) if kind == "waits" else 0.0
    job = Job(1, LONG, LONG, runs=1, parameters={"close": close})
    with ExitStack() as stack:
        emulator = start_emulator(directory / "emulator")
        stack.callback(emulator.stop)
        url = stack.enter_context(shared_redis(directory))
        sweep = emulator.create_sweep(job.sweep())
        flags = ("--slots", "1", "--redis-url", url, *poll)
        nodes = [Node(name, emulator, directory / "n", sweep, flags) for name in "ab"]
        for node in nodes:
            stack.callback(node.end)
        nodes[0].start()
        wait_until("the run trains", lambda: nodes[0].records("init"), options.patience)
        nodes[1].start()
        hops = Hops()
        for number in range(options.hops):
            progress(f"handoff: the other node {kind}, {number + 1} of {options.hops}")
            _hop(nodes[number % 2], nodes[1 - number % 2], number, options, hops)
            bare += [_python_start() for _ in range(PYTHON_STARTS)]
        return hops


def _hop(holder: Node, other: Node, number: int, options: argparse.Namespace, hops: Hops) -> None:
    """Preempt the run on `holder` and wait until it trains on `other`."""
    wait_until(f"an agent of {other.name} is ready", lambda: other.status().get("warm_agents"),
               options.patience)  # fmt: skip
    sleep(options.settle + phase(number))  # after the wait, which would take the phase away
    inits = len(other.records("init"))
    events = len(other.events())
    holder.ctl("preempt")
    wait_until("the run trains on the other node", lambda: len(other.records("init")) > inits,
               options.patience)  # fmt: skip
    gone = seconds_of(holder.events("tree_gone")[-1])
    fresh = other.events()[events:]
    for part, name in PARTS.items():
        hops.parts[part].append(seconds_of(_last(fresh, "event", name)) - gone)
    begin = _last(other.records("begin"), "node", other.name)
    end = _last(other.records("end"), "node", holder.name)
    hops.total.append(begin["wall"] - gone)
    hops.since_end.append(begin["at"] - end["at"])
    holder.ctl("undrain")


def _last(lines: list[dict[str, Any]], key: str, value: str) -> dict[str, Any]:
    return next(line for line in reversed(lines) if line[key] == value)


def _python_start() -> float:
    began = monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return monotonic() - began


HANDOFF = Measurement("handoff", "a preempted run goes on on another node", EXAMPLES, add_options,
                      measure, SHORT)  # fmt: skip
