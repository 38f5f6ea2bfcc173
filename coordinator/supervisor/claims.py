"""Asks the W&B server for work, one slot at a time, and keeps what could not be delivered.

Owns the backlog: a command that was fetched is never dropped on the floor, because the server keeps
its run reserved for an hour. Idle slots take turns, so that an empty sweep costs the server one
request per poll and node.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import anyio
import structlog

from coordinator.core import wire
from coordinator.core.wire import Orders, TrainCommand
from coordinator.gateway.desk import Reply
from coordinator.supervisor.agent import Agent, AgentState
from coordinator.supervisor.level import Level

log = structlog.get_logger()

ASK_SECONDS = 30.0
"""A question for work is not given up before: its answer may name a run."""
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0


class Claims:
    """See the module."""

    def __init__(
        self,
        poll_seconds: float,
        rescued: Callable[[], Awaitable[TrainCommand | None]],
        sweep_ended: Callable[[], None],
        agent_unknown: Callable[[Agent], None],
    ) -> None:
        self._poll_seconds = poll_seconds
        self._rescued = rescued
        self._sweep_ended = sweep_ended
        self._agent_unknown = agent_unknown
        self._backlog: deque[TrainCommand] = deque()
        self._arrived = Level()
        self._turn = anyio.Lock()
        self._failures = 0
        self.trouble = ""
        """Why the server gives no answers; "" when it does."""

    @property
    def undelivered(self) -> tuple[TrainCommand, ...]:
        """Commands that were fetched and wait for a slot."""
        return tuple(self._backlog)

    def put_back(self, command: TrainCommand) -> None:
        """Keep a command that could not be started; it goes first to the next slot."""
        log.info("claim_kept", run_id=command.run_id, kind=command.kind)
        self._backlog.appendleft(command)
        self._arrived.bump()

    def take_undelivered(self) -> list[TrainCommand]:
        """Empty the backlog: its commands are somebody else's now."""
        taken = list(self._backlog)
        self._backlog.clear()
        return taken

    async def next(self, agent: Agent) -> TrainCommand | None:
        """The next command: from the backlog, the rescue queue or the server, in the agent's name.

        Waits as long as there is none; None when the agent ends meanwhile. Cancellation loses
        nothing: an answer under way is awaited and its command kept.
        """
        async with self._turn:
            while not self._backlog:
                if agent.state is AgentState.GONE:
                    return None
                if (rescued := await self._rescued()) is not None:
                    return rescued
                pause = await self._ask(agent)
                if pause > 0:
                    with anyio.move_on_after(pause):
                        await self._arrived.wait()
            return self._backlog.popleft()

    async def _ask(self, agent: Agent) -> float:
        """Ask once; the pause before the next question, in seconds."""
        assert agent.beat is not None, "an agent is reserved only once it has come to the desk"
        reply: Reply | None = None
        with anyio.move_on_after(ASK_SECONDS, shield=True):
            reply = await agent.beat.ask()
        if reply is None:
            reply = Reply(HTTPStatus.GATEWAY_TIMEOUT, b"")
        orders = wire.parse_orders(reply.body) if reply.status == HTTPStatus.OK else None
        if orders is None:
            return self._on_failure(agent, reply)
        return self._on_orders(orders)

    def _on_orders(self, orders: Orders) -> float:
        if self.trouble:
            log.info("upstream_recovered", failures=self._failures)
        self._failures, self.trouble = 0, ""
        for command in orders.train:
            log.info("run_claimed", run_id=command.run_id, kind=command.kind)
            self._backlog.append(command)
        for odd in orders.other:
            log.warning("command_unknown", type=str(odd.get("type")))
        if orders.exit and not orders.train:
            self._sweep_ended()
        return 0.0 if orders.train else self._poll_seconds

    def _on_failure(self, agent: Agent, reply: Reply) -> float:
        """Back off: with full jitter, or as long as the server asked for."""
        self._failures += 1
        words = wire.error_text(reply.body)
        self.trouble = f"HTTP {reply.status} {words}".strip()
        log.warning("claim_failed", agent=agent.number, status=reply.status, reason=words)
        if reply.status == HTTPStatus.NOT_FOUND:
            self._agent_unknown(agent)
        ceiling = min(FIRST_BACKOFF_SECONDS * 2**self._failures, LONGEST_BACKOFF_SECONDS)
        backoff = random.uniform(FIRST_BACKOFF_SECONDS / 2, ceiling)  # noqa: S311 - only jitter
        return max(backoff, reply.retry_after_seconds or 0.0)
