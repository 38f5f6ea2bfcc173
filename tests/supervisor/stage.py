"""Real agents' processes that are no wandb, and claims with a scripted server.

Owns the processes that it starts, through `Agents`. Nothing here is a test.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from coordinator.config.model import Breaker as BreakerConfig
from coordinator.config.model import Config
from coordinator.core.model import AgentStart, CommandKind, SweepPath
from coordinator.core.wire import TrainCommand, heartbeat_answer
from coordinator.daemon.guards import _breaker_settings, _pace_settings
from coordinator.gateway import IdleBeat
from coordinator.gateway.desk import Reply
from coordinator.process import tree
from coordinator.supervisor.agent import Agent, AgentState
from coordinator.supervisor.agents import Agents, AgentSettings
from coordinator.supervisor.breakers import Breakers
from coordinator.supervisor.guards import Guards
from coordinator.supervisor.level import Level
from coordinator.supervisor.pacing import Pacer
from coordinator.supervisor.premises import Premises
from coordinator.supervisor.starter import AgentStarter, StarterSettings
from coordinator.supervisor.upstream import Upstream
from tests.support.emulator import wait_until

SECONDS = 60.0
SWEEP = SweepPath("my-team", "vision", "a1b2c3d4")
SLEEP = "exec sleep 600"


def command(run_id: str, kind: CommandKind = CommandKind.RUN) -> TrainCommand:
    args = {"n": {"value": 1}}
    raw = {"type": kind.value, "run_id": run_id, "args": args, "program": "t.py"}
    return TrainCommand(kind, run_id, "t.py", args, raw)


def state_of(pid: int) -> str:
    """The letter of proc(5): T for a frozen process, "" for none."""
    return next((seen.state for seen in tree.processes() if seen.pid == pid), "")


async def until(what: str, probe: Callable[[], bool]) -> None:
    await anyio.to_thread.run_sync(wait_until, what, probe, SECONDS)


@dataclass
class Crew:
    """The agents of one test."""

    agents: Agents
    changed: Level
    tokens: list[str]
    folder: Path
    refusals: list[str]
    group: TaskGroup
    answers: list[bytes] = field(default_factory=list)
    """To heartbeats, in order."""

    async def started(self, count: int = 1) -> list[Agent]:
        """Start agents and wait for their processes."""
        known = len(self.tokens)
        self.agents.start(count)

        def up() -> bool:
            new = self.tokens[known:]
            return len(new) == count and all(self.agents._by_token[t].pid for t in new)

        await until("agents are started", up)
        return [self.agents._by_token[token] for token in self.tokens[known:]]

    async def at_the_desk(self, agent: Agent) -> None:
        """Let the agent present its heartbeat, which is held until it is answered."""

        async def ask() -> Reply:
            return Reply(200, heartbeat_answer("A", []))

        async def beat() -> None:
            self.answers.append(await self.agents.idle(agent.token, IdleBeat("A", ask)))
            self.changed.bump()

        self.group.start_soon(beat)
        with anyio.fail_after(SECONDS):
            while agent.beat is None:
                await self.changed.wait()


async def key_is_good() -> None:
    """The server has let us in."""


def guards(folder: Path, changed: Level | None = None, **breaker: Any) -> Guards:
    """Guards as the daemon builds them, without a Redis."""
    config = Config(breaker=BreakerConfig(**breaker))
    bump = (changed or Level()).bump
    premises = Premises([folder], config.breaker.min_free_bytes, key_is_good, bump)
    return Guards(
        upstream=Upstream(premises.doubt_key),
        pacer=Pacer(_pace_settings(config), None),
        premises=premises,
        breakers=Breakers(_breaker_settings(config), "a", None, bump),
    )


def executing(executable: Path, env: dict[str, str], folder: Path) -> AgentStarter:
    """Starts `executable` anew for each agent."""
    return AgentStarter(
        StarterSettings(AgentStart.EXEC, str(executable), env, folder, folder / "logs")
    )


@asynccontextmanager
async def crew(
    folder: Path, script: str = SLEEP, *, welcome: bool = False, graceful_cancel: bool = False
) -> AsyncIterator[Crew]:
    """Agents whose executable is this shell script."""
    executable = folder / "wandb"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "NOTES": str(folder / "notes")}
    (folder / "logs").mkdir(exist_ok=True)
    changed = Level()
    refusals: list[str] = []
    tokens: list[str] = []

    def address(token: str) -> str:
        tokens.append(token)
        return f"http://127.0.0.1:1/a/{token}"

    settings = AgentSettings(SWEEP, env, folder / "logs", address, graceful_cancel)
    async with anyio.create_task_group() as group:
        agents = Agents(settings, executing(executable, env, folder), changed=changed,
                        refused=lambda: refusals.append("refused"), guards=guards(folder),
                        welcome=lambda: welcome, group=group)  # fmt: skip
        try:
            yield Crew(agents, changed, tokens, folder, refusals, group)
        finally:
            with anyio.CancelScope(shield=True), anyio.fail_after(SECONDS):
                await agents.end_all()
            group.cancel_scope.cancel()


@dataclass
class Server:
    """Answers questions for work in order; the last answer for ever."""

    replies: list[Reply]
    asked: int = 0
    arrived: anyio.Event = field(default_factory=anyio.Event)
    gate: anyio.Event | None = None
    """A question waits for it, if it is there."""

    async def ask(self) -> Reply:
        self.asked += 1
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def agent(self, number: int = 1) -> Agent:
        """An agent that has come to the desk and is reserved."""
        agent = Agent(number, f"token{number}", Path("unused"))
        agent.state, agent.beat = AgentState.RESERVED, IdleBeat("A", self.ask)
        return agent


def orders(*commands: TrainCommand | dict[str, Any]) -> Reply:
    raw = [dict(c.raw) if isinstance(c, TrainCommand) else c for c in commands]
    return Reply(200, heartbeat_answer("A", raw))


async def within(awaitable: Awaitable[Any]) -> Any:
    with anyio.fail_after(SECONDS):
        return await awaitable
