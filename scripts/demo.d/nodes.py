"""A node of the demo: one real coordinatord, and coordinatorctl to talk to it.

Owns the command lines. Everything that the demo does to a node goes through here, in the way in
which a person, SLURM or a cloud provider would do it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from world import DemoError, World, tail

SLOTS = 2


@dataclass(slots=True)
class Node:
    """A node that may be started, end, and be started again."""

    name: str
    world: World
    sweep: str
    redis_url: str
    process: Process | None = None

    @property
    def state_dir(self) -> Path:
        """State, logs and sockets of the daemon."""
        return self.world.root / self.name

    @property
    def socket(self) -> Path:
        """Where coordinatorctl finds the daemon."""
        return self.state_dir / "control.sock"

    @property
    def events(self) -> Path:
        """What the daemon did."""
        return self.state_dir / "events.jsonl"

    @property
    def pid(self) -> int:
        """The daemon's process. Raises DemoError when it does not run."""
        if self.process is None or self.process.returncode is not None:
            raise DemoError(f"node {self.name} has ended: {tail(self.world.log(self.name))}")
        return self.process.pid

    async def start(self) -> None:
        """Start the daemon; it ends by itself when the sweep has no more work."""
        flags = [
            "--sweep", self.sweep, "--node", self.name, "--slots", str(SLOTS), "--until-done",
            "--state-dir", str(self.state_dir), "--redis-url", self.redis_url,
            # Two trainings of a few seconds each use agents up faster than one can be made ready.
            "--set", "pool.warm_agents=2",
            "--set", "pool.gpus_per_slot=0",
            "--set", "sweep.poll_seconds=0.5",
            # A training may still be in wandb.init() when it is asked to save.
            "--set", "preemption.grace_seconds=120",
        ]  # fmt: skip
        command = [sys.executable, "-m", "coordinator.daemon", *flags]
        self.process = await self.world.start(self.name, command, node=self.name)

    async def wait(self, seconds: float) -> int | None:
        """The daemon's exit code; None when it has not ended in time."""
        assert self.process is not None, "a node is waited for only once it was started"
        with anyio.move_on_after(seconds):
            return await self.process.wait()
        return None

    async def ctl(self, *words: str) -> Any:
        """What `coordinatorctl --json` answers. Raises DemoError when it fails."""
        command = [sys.executable, "-m", "coordinator.cli", "--json", "--socket", str(self.socket)]
        return json.loads(await self.world.output([*command, *words]))


def coordinatorctl() -> str:
    """How a person calls coordinatorctl of this installation, from the present directory."""
    program = Path(sys.executable).with_name("coordinatorctl")
    if not program.exists():
        return f"{sys.executable} -m coordinator.cli"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)
