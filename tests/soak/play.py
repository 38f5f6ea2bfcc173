"""Many short runs over several nodes on a server that fails in every way; then the judge.

Owns the play of `scripts/soak` and of its short form in tests/e2e. Real daemons, real agents, real
trainings; only the server is the emulator.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from time import monotonic, sleep
from typing import Any

from tests.support.emulator import Emulator
from tests.support.node import TRAIN, Node, overlaps

LENGTHS = (0.5, 1.0, 2.0, 3.0)
MOST_OWED = 3
"""Requests that are yet to meet a fault: a server that fails without a pause lets nobody start."""
Rule = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    runs: int
    nodes: int
    slots: int
    rounds: int
    """How often each fault is played."""
    every_seconds: float
    """Between two faults."""
    long_seconds: float
    """How long the server has "nothing" for anybody."""
    stall_seconds: float
    bound_seconds: float


@dataclass
class Result:
    """What came of it."""

    finished: int = 0
    runs: int = 0
    trainings: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def faults_of(plan: Plan) -> dict[str, Rule]:
    """By name; 404 and 400 only where real servers give them to agents."""
    beat = {"op": "Heartbeat"}
    return {
        "429": {"kind": "http", "status": 429, "retry_after": 1, "count": 3},
        "500": {"kind": "http", "status": 500, "count": 4},
        "404 once": {**beat, "kind": "http", "status": 404, "count": 1, "idle": True},
        "400 not running": {"op": "CreateAgent", "kind": "not_running", "count": 1},
        "dropped": {"kind": "drop", "count": 3},
        "stall": {**beat, "kind": "delay", "seconds": plan.stall_seconds, "count": 2},
        "502 to agents": {"op": "CreateAgent", "kind": "http", "status": 502, "count": 2},
        "nothing": {**beat, "kind": "empty", "idle": True, "for_seconds": plan.long_seconds},
    }


def sweep_of(plan: Plan) -> dict[str, Any]:
    """A grid of at least so many runs of 0.5 to 3 s."""
    lengths = LENGTHS[: min(len(LENGTHS), plan.runs)]
    return {
        "program": str(TRAIN),
        "method": "grid",
        "parameters": {
            "n": {"values": list(range(-(-plan.runs // len(lengths))))},
            "seconds": {"values": list(lengths)},
        },
        "run_cap": plan.runs,
    }


def play(
    plan: Plan, emulator: Emulator, make_node: Callable[..., Node], say: Callable[[str], None]
) -> Result:
    """Play and judge."""
    sweep = emulator.create_sweep(sweep_of(plan))
    flags = ("--slots", str(plan.slots), "--until-done", "--set", "sweep.poll_seconds=0.5")
    nodes = [make_node(sweep, *flags, name=f"n{number}").start() for number in range(plan.nodes)]
    for node in nodes:
        node.wait_running(1)  # before that a refused agent ends the daemon, as it must
    began = monotonic()
    result = Result(runs=plan.runs)
    try:
        disturb(plan, emulator, nodes, result, say)
    except AssertionError as error:
        result.wrong.append(str(error))
    result.seconds = monotonic() - began
    judge(emulator, nodes, result)
    return result


def disturb(
    plan: Plan, emulator: Emulator, nodes: list[Node], result: Result, say: Callable[[str], None]
) -> None:
    """One fault after the other; until every node has ended by itself."""
    end = monotonic() + plan.bound_seconds
    faults = faults_of(plan)
    names = chain.from_iterable(repeat(list(faults), plan.rounds))
    next_at = monotonic()
    while any(node.process is not None and node.process.poll() is None for node in nodes):
        assert monotonic() < end, f"not done within {plan.bound_seconds:g} s"
        owed = sum(rule["count"] or 0 for rule in emulator.state()["faults"])
        if monotonic() >= next_at and owed < MOST_OWED:
            name = next(names, "")
            if name:
                emulator.faults(faults[name])
                result.faults[name] += 1
            states = Counter(run["state"] for run in emulator.state()["runs"].values())
            passed = plan.bound_seconds - (end - monotonic())
            say(f"{passed:6.0f} s  {name or 'no fault':16} {dict(states)}")
            next_at = monotonic() + plan.every_seconds
        sleep(0.2)


def judge(emulator: Emulator, nodes: list[Node], result: Result) -> None:
    """All finished, none twice at once, nothing left, and every fault has bitten."""
    runs = emulator.state()["runs"]
    states = Counter(run["state"] for run in runs.values())
    result.finished = states["finished"]
    result.trainings = len(nodes[0].records("begin"))
    if set(states) != {"finished"} or result.finished < result.runs:
        unfinished = {r: run["state"] for r, run in runs.items() if run["state"] != "finished"}
        result.wrong.append(f"{result.finished} of {result.runs} finished; others: {unfinished}")
    for node in nodes:
        code = None if node.process is None else node.process.poll()
        if code != 0:
            result.wrong.append(f"{node.name} ended with {code}: {node.tail()[-500:]}")
        if left := node.processes():
            result.wrong.append(f"{node.name} left {left}")
    if found := overlaps(nodes[0].records()):
        result.wrong.append(f"overlaps: {found}")
    bitten = {event["kind"] for event in emulator.events("fault")}
    if missing := {"http", "delay", "drop", "empty", "not_running"} - bitten:
        result.wrong.append(f"these faults met no request, so nothing is shown of them: {missing}")
