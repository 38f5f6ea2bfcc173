"""The story that the demo plays: a sweep on two nodes, a preemption, a comeback, a kill.

Owns the order of what is done to the nodes, and what it had to see to do it. It judges nothing:
that is `verdict`, which gets the `Story` and what was observed.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
from nodes import SLOTS, Node
from observed import Observed, Stay
from stage import Stage
from world import DemoError, World

T = TypeVar("T")

STEPS = 40
STEP_SECONDS = 0.2
RACY_SECONDS = 20
"""So long after its first hand-out the server gives a re-queued run to every agent that asks."""
CRASH_SECONDS = 6
"""The server takes a run for crashed after so much silence; W&B takes five minutes."""
ACT_SECONDS = 300.0
"""Far more than an act takes, also on a machine that is busy with other things."""
_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class Story:
    """What was done, and what could be seen only while it was done."""

    runs: int
    leases: bool
    preempted: list[str] = field(default_factory=list)
    """Runs that trained on node a when it got its SIGTERM."""
    preempt_seconds: float = 0.0
    """From that SIGTERM to the end of node a's daemon."""
    killed: Stay | None = None
    exit_codes: dict[str, list[int | None]] = field(default_factory=dict)
    """Of each node's daemons in turn; None for one that did not end in time."""
    left: list[str] = field(default_factory=list)
    """Processes that still lived when their daemon had ended."""
    seconds: float = 0.0


class Play:
    """See the module."""

    def __init__(self, world: World, observed: Observed, stage: Stage, story: Story) -> None:
        self._world = world
        self.observed = observed
        self.stage = stage
        self.story = story

    async def perform(self, a: Node, b: Node) -> None:
        """All acts. Raises DemoError when one cannot be played."""
        began = time.monotonic()
        self.stage.act(1, f"two nodes, {SLOTS} slots each, work on a sweep of {self.story.runs}")
        await a.start()
        await b.start()
        await self._until("node a is in the middle of its runs", lambda: self._ripe(a), a, b)
        self.stage.act(2, "node a gets a SIGTERM, as from SLURM or a spot machine")
        await self._preempt(a)
        await self._until("node b continues a run of node a", lambda: self._resumed(b), b)
        self.stage.act(3, "node a is back; a training process gets a SIGKILL")
        await a.start()
        await self._kill(a, b)
        self.stage.act(4, "the nodes work until no work is left")
        await self._finish(a, b)
        self.story.seconds = time.monotonic() - began

    # --- what is waited for -------------------------------------------------------------------
    def _ripe(self, node: Node) -> bool:
        """A quarter of the sweep is done; all slots of the node train, and one is well under way.

        A training that is still in `wandb.init()` is welcome: it must survive that too.
        """
        if self.observed.count("finished") < self.story.runs // 4:
            return False
        training = [s for s in self.observed.living(node.name) if s.step < STEPS * 0.8]
        return len(training) == SLOTS and any(s.step > STEPS * 0.1 for s in training)

    def _resumed(self, node: Node) -> bool:
        runs = {stay.run for stay in self.observed.living(node.name)}
        return not runs.isdisjoint(self.story.preempted)

    def _victim(self) -> Stay | None:
        """A training process in the midst of a run that nothing else has happened to."""
        known = [s for name in ("b", "a") for s in self.observed.living(name)]
        fit = [s for s in known if STEPS * 0.1 < s.step < STEPS * 0.7]
        return next((s for s in fit if s.run not in self.story.preempted), None)

    async def _until(self, what: str, probe: Callable[[], T | None], *nodes: Node) -> T:
        with anyio.move_on_after(ACT_SECONDS):
            while not (found := probe()):
                for node in nodes:
                    _ = node.pid  # raises when it has ended
                await anyio.sleep(_LOOK_SECONDS)
            return found
        raise DemoError(f"not within {ACT_SECONDS:g} s: {what}")

    # --- what is done -------------------------------------------------------------------------
    async def _preempt(self, node: Node) -> None:
        self.story.preempted = [stay.run for stay in self.observed.living(node.name)]
        began = time.monotonic()
        os.kill(node.pid, signal.SIGTERM)
        await self._ended(node, ACT_SECONDS)
        self.story.preempt_seconds = time.monotonic() - began

    async def _kill(self, *nodes: Node) -> None:
        """Kill the process that coordinatorctl names, as a person would."""
        while self.story.killed is None:
            victim = await self._until("a run is half-way", self._victim, *nodes)
            node = next(node for node in nodes if node.name == victim.node)
            slots = (await node.ctl("status"))["slots"]
            pids = [slot["pid"] for slot in slots if slot["run_id"] == victim.run]
            if pids == [victim.pid] and victim.step < STEPS * 0.9:
                os.kill(victim.pid, signal.SIGKILL)
                self.story.killed = victim
                self.stage.say(f"kill -9 {victim.pid}: run {victim.run} on node {victim.node}")

    async def _finish(self, *nodes: Node) -> None:
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(self._ended, node, ACT_SECONDS)

    async def _ended(self, node: Node, seconds: float) -> None:
        """Wait for a daemon's end, and look at once what it has left behind."""
        code = await node.wait(seconds)
        self.story.exit_codes.setdefault(node.name, []).append(code)
        needle = f"DEMO_NODE={node.name}".encode()
        for pid, command in self._world.processes().items():
            if needle in _environment(pid):
                self.story.left.append(f"{node.name}: {pid} {command}")


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


async def create_sweep(world: World, runs: int) -> str:
    """Create the sweep with wandb's own command line; its path."""
    rates = [round(0.02 * 1.25**number, 4) for number in range(runs)]
    file = world.work / "sweep.yaml"
    file.write_text(_sweep_yaml(rates), encoding="utf-8")
    wandb = [sys.executable, "-m", "wandb", "sweep", "--project", "demo", str(file)]
    output = await world.output(wandb)
    if found := re.search(r"wandb agent (\S+/\S+/\S+)", output):
        return found[1]
    raise DemoError(f"wandb sweep printed no sweep: {output}")


def _sweep_yaml(rates: list[float]) -> str:
    return f"""program: {Path(__file__).with_name("train.py")}
method: grid
parameters:
  learning_rate: {{values: {rates}}}
  steps: {{value: {STEPS}}}
  step_seconds: {{value: {STEP_SECONDS}}}
"""
