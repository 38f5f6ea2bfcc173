"""The agents of a node: started ahead of need, reserved by slots, reaped when they end.

Owns the desk at which the gateway presents idle heartbeats. It must never start agents in a loop:
until one has registered only one is tried at a time, and failed starts are waited out.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from coordinator.core import wire
from coordinator.core.model import SweepPath
from coordinator.core.wire import Orders, TrainCommand
from coordinator.gateway.desk import IdleBeat, Reply
from coordinator.supervisor.agent import FREEZE_AFTER_SECONDS, READY, Agent, AgentState
from coordinator.supervisor.guards import Guards
from coordinator.supervisor.level import Level
from coordinator.supervisor.starter import AgentStarter

log = structlog.get_logger()

LINGER_SECONDS = 45.0
"""An agent notices the end of its run within its 5 s poll; then it winds up wandb-core."""
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
FATAL_FAILURES = 2
"""Agent starts that may fail before one has ever worked."""
OUTPUT_FILES_KEPT = 200


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How agents are started."""

    sweep: SweepPath
    env: Mapping[str, str]
    output_dir: Path
    address: Callable[[str], str]
    """The gateway's address for a token."""
    graceful_cancel: bool = False
    """The end of a cancelled run is a graceful one: the server's `exit`, upon which an agent kills,
    must not reach its agent before."""


class Agents:
    """See the module. Implements `gateway.Desk`."""

    def __init__(
        self,
        settings: AgentSettings,
        starter: AgentStarter,
        *,
        changed: Level,
        refused: Callable[[], None],
        guards: Guards,
        welcome: Callable[[], bool],
        group: TaskGroup,
    ) -> None:
        """`refused` is called when the server no longer registers agents: the sweep may be over.

        `welcome` says whether an agent that the server does not register is of use to us.
        """
        self._settings = settings
        self.starter = starter
        self._changed = changed
        self._guards = guards
        self._refused = refused
        self._welcome = welcome
        self._group = group
        self._by_token: dict[str, Agent] = {}
        self._count = _highest(settings.output_dir)
        self._failures = 0
        self._waiting_out = False
        self.proven = False
        self.fatal: str | None = None
        """Why no agent can be started at all: the agent's own last words."""

    # --- what is there ------------------------------------------------------------------------
    @property
    def ready(self) -> list[Agent]:
        """Agents without a run."""
        return [agent for agent in self._by_token.values() if agent.state in READY]

    @property
    def starting(self) -> int:
        """Agents that have not come to the desk yet."""
        return sum(agent.state is AgentState.STARTING for agent in self._by_token.values())

    @property
    def warm(self) -> int:
        """Agents that wait for work, not reserved."""
        return sum(agent.state is AgentState.IDLE for agent in self._by_token.values())

    @property
    def may_start(self) -> bool:
        """False while a failed start is being waited out, or when starting is hopeless."""
        hopeless = self._waiting_out or self.fatal is not None
        return not hopeless and self._guards.upstream.wait_seconds == 0.0

    @property
    def pids(self) -> list[int]:
        """Processes whose end somebody waits for."""
        agents = [agent.pid for agent in self._by_token.values() if agent.pid]
        return [*agents, *self.starter.pids]

    @property
    def trouble(self) -> str:
        """Why agents do not start; "" when they do."""
        return f"{self._failures} agents in a row ended early" if self._failures else ""

    # --- starting and ending ------------------------------------------------------------------
    def start(self, count: int) -> None:
        """Start `count` agents in the background, or as many as their pace allows now."""
        for _ in range(self._guards.pacer.starts(count)):
            self._count += 1
            token = secrets.token_urlsafe(16)
            output = self._settings.output_dir / f"agent-{self._count}.log"
            agent = Agent(self._count, token, output)
            self._by_token[token] = agent
            self._group.start_soon(self._live, agent)

    def dismiss(self, keep: int) -> None:
        """End agents without a run until `keep` are left; reserved ones last."""
        order = {AgentState.STARTING: 0, AgentState.IDLE: 1, AgentState.RESERVED: 2}
        ready = sorted(self.ready, key=lambda agent: order[agent.state])
        for agent in ready[: len(ready) - keep]:
            self.discard(agent)

    def dismiss_guests(self) -> None:
        """The server takes agents on again: those that only we know cannot ask it for work."""
        for agent in self.ready:
            if agent.guest:
                self.discard(agent)

    def discard(self, agent: Agent) -> None:
        """End one agent; a run that it may have been given is no longer its."""
        agent.dismissed = True
        agent.state = AgentState.GONE
        self._group.start_soon(self._end, agent)

    async def _live(self, agent: Agent) -> None:
        settings = self._settings
        env = {**settings.env, "WANDB_BASE_URL": settings.address(agent.token),
               "COORDINATOR_RUN_AGENT": agent.token}  # fmt: skip
        try:
            agent.child = await self.starter.start(
                str(settings.sweep), env=env, output=agent.output
            )
        except OSError as error:
            agent.excused = self._guards.premises.noticed(error)
            self._failed(agent, None, f"{error.filename or 'agent'}: {error.strerror}")
            self._forget(agent)
            return
        log.info("agent_started", agent=agent.number, pid=agent.pid)
        self._changed.bump()
        if agent.dismissed:
            await self._end(agent)
        code = await agent.child.wait()
        words = await anyio.to_thread.run_sync(last_words, agent.output)
        if agent.state in READY and not agent.dismissed:
            self._failed(agent, code, words)
        else:
            log.info("agent_exited", agent=agent.number, pid=agent.pid, exit_code=code)
        self._forget(agent)

    def _forget(self, agent: Agent) -> None:
        agent.state = AgentState.GONE
        agent.gone.set()
        self._by_token.pop(agent.token, None)
        self._changed.bump()

    def _failed(self, agent: Agent, code: int | None, words: str) -> None:
        log.warning("agent_failed", agent=agent.number, exit_code=code, last_words=words)
        self._failures += 1
        if not agent.excused:
            self._guards.breakers.agent_failed(words or f"exit code {code}")
        if not self.proven and self._failures >= FATAL_FAILURES:
            self.fatal = words or f"wandb agent exited with {code}"
        backoff = min(FIRST_BACKOFF_SECONDS * 2 ** (self._failures - 1), LONGEST_BACKOFF_SECONDS)
        self._waiting_out = True
        self._group.start_soon(self._wait_out, backoff)

    async def _wait_out(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._waiting_out = False
        self._changed.bump()

    async def _end(self, agent: Agent) -> None:
        if agent.child is not None:
            await agent.child.kill_session()

    async def end_lingering(self, agent: Agent) -> None:
        """Give an agent whose run is over the time to leave by itself, then end it."""
        with anyio.move_on_after(LINGER_SECONDS):
            await agent.gone.wait()
        if not agent.gone.is_set():
            log.warning("agent_lingered", agent=agent.number, pid=agent.pid)
            self.discard(agent)

    async def end_all(self) -> None:
        """End every agent and whatever is left in its session."""
        async with anyio.create_task_group() as group:
            for agent in list(self._by_token.values()):
                agent.dismissed = True
                group.start_soon(self._end, agent)
        for agent in list(self._by_token.values()):
            await agent.gone.wait()

    # --- reserving ----------------------------------------------------------------------------
    async def reserve(self) -> Agent:
        """Wait for an agent that has come to the desk; it is the caller's until given back."""
        while True:
            for agent in self._by_token.values():
                if agent.state is AgentState.IDLE and agent.beat is not None:
                    agent.state = AgentState.RESERVED
                    self._changed.bump()
                    return agent
            await self._changed.wait()

    def give_back(self, agent: Agent) -> None:
        """Undo `reserve`."""
        if agent.state is AgentState.RESERVED:
            agent.state = AgentState.IDLE
            self._changed.bump()

    def give(self, agent: Agent, command: TrainCommand) -> None:
        """Hand a reserved agent its run."""
        agent.give(command)
        self._changed.bump()

    # --- the desk -----------------------------------------------------------------------------
    def knows(self, token: str) -> bool:
        """True for an agent that lives."""
        return token in self._by_token

    def registered(self, token: str, agent_id: str) -> None:
        """The server has taken the agent on."""
        agent = self._by_token[token]
        agent.server_id = agent_id
        self.proven, self._failures = True, 0
        log.info("agent_registered", agent=agent.number, server_id=agent_id)
        self._changed.bump()

    def turned_away(self, token: str, reply: Reply) -> str | None:
        """The server has refused the agent; it will end with its own words, or is our guest."""
        agent = self._by_token[token]
        if reply.status in {HTTPStatus.OK, HTTPStatus.BAD_REQUEST} and self._welcome():
            agent.guest = True
            self.proven, self._failures = True, 0
            log.info("agent_admitted", agent=agent.number)
            self._changed.bump()
            return f"guest-{agent.number}"
        words = wire.error_text(reply.body)
        agent.excused = True
        log.warning("agent_refused", agent=agent.number, status=reply.status, reason=words)
        self._refused()
        return None

    def is_guest(self, token: str) -> bool:
        """True for an agent that only we know."""
        agent = self._by_token.get(token)
        return agent is not None and agent.guest

    def troubled(self, token: str, reply: Reply) -> None:
        """W&B has no time for an agent, or no answer: the whole node slows down."""
        if (agent := self._by_token.get(token)) is not None:
            agent.excused = True
        words = wire.error_text(reply.body)
        self._guards.upstream.failed(reply.status, words, reply.retry_after_seconds)

    async def due(self, token: str) -> bool:
        """Hold the heartbeat of an agent with a run until the server is to hear of it."""
        return await self._by_token[token].due()

    def ordered(self, token: str, orders: Orders) -> bool:
        """The server has given orders to an agent with a run; True when they may reach it."""
        agent = self._by_token[token]
        known = agent.run_id in agent.cancelled_runs
        self._guards.upstream.answered()
        agent.ordered(orders)
        if (orders.stop or orders.exit) and not known:
            log.info("stop_ordered", agent=agent.number, run_id=agent.run_id, exit=orders.exit)
        if not orders.exit:
            return True
        self._refused()
        self._changed.bump()
        lives = agent.run_id is not None and not agent.run_ended.is_set()
        return not (self._settings.graceful_cancel and lives)

    async def idle(self, token: str, beat: IdleBeat) -> bytes:
        """Hold the heartbeat of an agent without a run."""
        agent = self._by_token[token]
        if agent.state is AgentState.STARTING:
            agent.state = AgentState.IDLE
        agent.beat = beat
        self._changed.bump()
        answer = await agent.hold(beat)
        if agent.state in READY:
            self._group.start_soon(self._freeze_later, agent)
        return answer

    async def _freeze_later(self, agent: Agent) -> None:
        await anyio.sleep(FREEZE_AFTER_SECONDS)
        agent.freeze()


def last_words(output: Path) -> str:
    """The last line of an agent's output that says something; "" when there is none."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if "ERROR" in line or "Error" in line]
    return (errors or said or [""])[-1][:300]


def _highest(folder: Path) -> int:
    """The highest agent number that earlier daemons used, so that no output file is shared."""
    numbers = [path.stem.removeprefix("agent-") for path in folder.glob("agent-*.log")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def prune_outputs(folder: Path, keep: int = OUTPUT_FILES_KEPT) -> None:
    """Delete the oldest output files beyond `keep`."""
    files = sorted(folder.glob("agent-*.log"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - keep)]:
        path.unlink(missing_ok=True)
