"""One cell, or one pair of kills: played on nodes of its own, then judged.

Owns the order of a play. A play whose fault did not hit is played again, and is a failure when it
never does.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.killmatrix.cells import EXPECTED, Cell, Outcomes, Phase, Victim, cells
from tests.killmatrix.judge import history, judge, leases_left
from tests.killmatrix.stage import TRAINING, MissedError, Stage
from tests.support.emulator import start_emulator
from tests.support.node import Node
from tests.support.redis import shared_redis

if TYPE_CHECKING:
    from pathlib import Path

TRIES = 3
TIMES = ("--crash-seconds", "6", "--reserve-seconds", "150")
"""Of a server that is far less patient than W&B, and yet more than a busy machine is slow."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    hits: tuple[Cell, ...]
    apart_seconds: float = 0.0
    """Between two hits of the same phase."""
    nodes: int = 1
    """More than one share a Redis."""
    expected: tuple[Outcomes, ...] | None = None
    runs: int = 2
    """Of the sweep; the last one fails by itself."""

    def __str__(self) -> str:
        hits = " + ".join(map(str, self.hits))
        if len(self.hits) < 2:
            return hits
        apart = f" {self.apart_seconds:.2f} s apart" if self._together else ""
        return f"{hits}{apart}, {self.nodes} node{'s' if self.nodes > 1 else ''}"

    @property
    def _together(self) -> bool:
        return len({cell.phase for cell in self.hits}) == 1


@dataclass
class Result:
    """What came of it."""

    plan: Plan
    seconds: float = 0.0
    outcomes: str = ""
    """Of the run that was hit."""
    restarts: int = 0
    kills: int = 0
    """Fewer than were planned: one died with the other, or nobody succeeded it."""
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def single(cell: Cell) -> Plan:
    """A cell of the matrix."""
    return Plan((cell,), expected=EXPECTED[cell.phase][cell.victim])


def pairs(count: int, seed: int) -> list[Plan]:
    """Random pairs, on one or two nodes: half of them at once, half in phases of their own."""
    dice = random.Random(seed)
    plans = []
    for _ in range(count):
        nodes = dice.choice((1, 2))
        pool = [cell for cell in cells() if nodes == 1 or cell.victim is not Victim.REDIS]
        first = dice.choice(pool)
        together = dice.random() < 0.5
        seconds = [c for c in pool if (c.phase == first.phase) is together and _follows(first, c)]
        second = dice.choice(seconds or [c for c in pool if c.phase == first.phase])
        plans.append(Plan((first, second), dice.uniform(0.0, 0.5), nodes, runs=3))
    return plans


def _follows(first: Cell, second: Cell) -> bool:
    """Whether there can be the second; a run whose agent died beside a ready shim has none."""
    orphaned = first == Cell(Victim.AGENT, Phase.WAITING) and second.victim is Victim.AGENT
    return second.phase.order >= first.phase.order and not orphaned


def play(plan: Plan, directory: Path) -> Result:
    """Until the fault has hit."""
    result = Result(plan)
    began = time.monotonic()
    for attempt in range(TRIES):
        try:
            _play(plan, directory / str(attempt), result)
            break
        except MissedError as error:
            result.missed.append(str(error))
        except AssertionError as error:
            result.wrong.append(str(error))
            break
    else:
        result.wrong.append(f"never hit: {result.missed}")
    result.seconds = time.monotonic() - began
    return result


def _play(plan: Plan, directory: Path, result: Result) -> None:
    directory.mkdir(parents=True)
    with ExitStack() as stack:
        emulator = start_emulator(directory / "emulator", *TIMES)
        stack.callback(emulator.stop)
        url = "embedded" if plan.nodes == 1 else stack.enter_context(shared_redis(directory))
        sweep = emulator.create_sweep(
            {
                "program": str(TRAINING),
                "method": "grid",
                "parameters": {
                    "n": {"values": list(range(plan.runs))},
                    "fails": {"value": plan.runs - 1},
                },
            }
        )
        flags = ("--slots", "1", "--redis-url", url)
        nodes = [Node(name, emulator, directory / "n", sweep, flags) for name in "ab"[: plan.nodes]]
        for node in nodes:
            stack.callback(node.end)
        stage = Stage(emulator, sweep, nodes)
        stage.start(early=plan.hits[0].phase.order <= Phase.WAITING.order)
        _hit(plan, stage)
        stage.wait("the sweep is done", stage.tend)
        result.wrong += judge(stage, plan.runs, plan.expected)
        if plan.nodes > 1:
            result.wrong += leases_left(url)
        stays = history(nodes).get(stage.hit_run or "", [])
        result.outcomes = ", ".join(str(view["outcome"]) for view in stays)
        result.restarts, result.kills = stage.restarts, len(stage.killed)


def _hit(plan: Plan, stage: Stage) -> None:
    first, *rest = plan.hits
    second = rest[0] if rest else None
    together = second is not None and second.phase == first.phase
    victims = {cell.victim for cell in (plan.hits if together else (first,))}
    with stage.at(first.phase, victims) as node:
        there = stage.find(node, second.victim) if second and together else None
        hit = stage.find(node, first.victim)
        stage.kill(node, first, hit)
        if second and together:
            _hit_again(stage, node, second, there if there != hit else None, plan.apart_seconds)
    if second and not together:
        with stage.at(second.phase, {second.victim}) as node:
            stage.kill(node, second, stage.find(node, second.victim))


def _hit_again(
    stage: Stage, node: Node, second: Cell, there: int | None, apart_seconds: float
) -> None:
    """The second of two at once: who was `there`, or else the successor of the first.

    It may have died with the first. Nobody succeeds while those who would see to it are stopped.
    """
    if there is None and second.victim is Victim.DAEMON:
        stage.tend()
        there = stage.find(node, second.victim)
    elif there is None and not stage.stopped:
        there = stage.wait("a successor", lambda: stage.find(node, second.victim))
    time.sleep(apart_seconds)
    if there is not None and stage.lives(node, there):
        stage.kill(node, second, there)
