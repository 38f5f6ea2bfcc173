"""Asks the W&B server for work, one slot at a time, and keeps what could not be delivered.

Owns the backlog: a command that was fetched is never dropped on the floor, because the server keeps
its run reserved for an hour. Idle slots take turns, so that an empty sweep costs the server one
request per poll and node. `Undelivered` has the backlog on disk before anybody acts on it.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import anyio
import structlog

from coordinator.core import wire
from coordinator.core.wire import Orders, TrainCommand
from coordinator.gateway.desk import Reply
from coordinator.supervisor.agent import Agent, AgentState
from coordinator.supervisor.guards import Guards
from coordinator.supervisor.level import Level
from coordinator.supervisor.undelivered import Undelivered

log = structlog.get_logger()

ASK_SECONDS = 65.0
"""A question for work is not given up before: its answer may name a run. The gateway's own time-out
comes first, so that a server which stalls for half a minute costs no run."""
LATE_SECONDS = 20.0
"""The same for a claim that is called off: a notice leaves no more time."""


class Claims:
    """See the module."""

    def __init__(
        self,
        poll_seconds: float,
        rescued: Callable[[], Awaitable[TrainCommand | None]],
        sweep_ended: Callable[[], None],
        guards: Guards,
        *,
        rest: Callable[[float], Awaitable[None]],
        kept: Undelivered,
    ) -> None:
        """`rest` returns after so many seconds, or when another node has given up a run."""
        self._poll_seconds = poll_seconds
        self._rescued = rescued
        self._sweep_ended = sweep_ended
        self._backlog: deque[TrainCommand] = deque()
        self._arrived = Level()
        self._turn = anyio.Lock()
        self._guards = guards
        self._rest = rest
        self._kept = kept

    @property
    def trouble(self) -> str:
        """Why the server gives no answers; "" when it does."""
        return self._guards.upstream.trouble

    @property
    def undelivered(self) -> tuple[TrainCommand, ...]:
        """Commands that were fetched and wait for a slot."""
        return tuple(self._backlog)

    async def put_back(self, command: TrainCommand) -> None:
        """Keep a command that could not be started; it goes first to the next slot."""
        await self._kept.keep(command)
        log.info("claim_kept", run_id=command.run_id, kind=command.kind)
        self._backlog.appendleft(command)
        self._arrived.bump()

    async def settled(self, run_id: str) -> None:
        """The command of this run is known elsewhere now: it has a lease, or was dropped."""
        await self._kept.settle(run_id)

    def restore(self, commands: list[TrainCommand]) -> None:
        """Undo `take_undelivered` for those that nobody else could be given."""
        self._backlog.extendleft(reversed(commands))
        if commands:
            self._arrived.bump()

    def take_undelivered(self) -> list[TrainCommand]:
        """Empty the backlog: its commands are somebody else's now."""
        taken = list(self._backlog)
        self._backlog.clear()
        return taken

    async def next(self, agent: Agent) -> TrainCommand | None:
        """The next command: from the backlog, the rescue queue or the server, in the agent's name.

        Waits as long as there is none; None when the agent ends meanwhile, or when the server does
        not know it. Cancellation loses nothing: an answer under way is awaited and its command
        kept.
        """
        async with self._turn:
            while not self._backlog:
                if agent.state is AgentState.GONE or agent.unknown:
                    return None
                if (rescued := await self._rescued()) is not None:
                    return rescued
                if (pause := await self._wait_seconds()) == 0.0:
                    pause = await self._ask(agent)
                if pause > 0 and not self._backlog:  # something may have come meanwhile
                    await self._pause(pause)
            return self._backlog.popleft()

    async def _pause(self, seconds: float) -> None:
        """Wait for so long, or until there may be work."""
        async with anyio.create_task_group() as group:

            async def arrival() -> None:
                await self._arrived.wait()
                group.cancel_scope.cancel()

            group.start_soon(arrival)
            await self._rest(seconds)
            group.cancel_scope.cancel()

    async def _wait_seconds(self) -> float:
        """How long the server is to be left alone, whichever slot would ask."""
        return self._guards.upstream.wait_seconds or await self._guards.pacer.claim_wait_seconds()

    async def _ask(self, agent: Agent) -> float:
        """Ask once; the pause before the next question, in seconds."""
        pause = 0.0
        patience = anyio.CancelScope(deadline=anyio.current_time() + ASK_SECONDS, shield=True)

        async def ask() -> None:
            nonlocal pause
            reply = Reply(HTTPStatus.GATEWAY_TIMEOUT, b"")
            with patience:
                assert agent.beat is not None, "an agent is reserved once it has come to the desk"
                reply = await agent.beat.ask()
            pause = await self._heard(agent, reply)
            answered.set()

        answered = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            try:
                await answered.wait()
            except anyio.get_cancelled_exc_class():
                patience.deadline = min(patience.deadline, anyio.current_time() + LATE_SECONDS)
                raise
        return pause

    async def _heard(self, agent: Agent, reply: Reply) -> float:
        orders = wire.parse_orders(reply.body) if reply.status == HTTPStatus.OK else None
        if orders is None:
            return self._on_failure(agent, reply)
        return await self._on_orders(orders)

    async def _on_orders(self, orders: Orders) -> float:
        self._guards.upstream.answered()
        if orders.train:
            await self._kept.keep(*orders.train)
        for command in orders.train:
            log.info("run_claimed", run_id=command.run_id, kind=command.kind)
            self._backlog.append(command)
        for odd in orders.other:
            log.warning("command_unknown", type=str(odd.get("type")))
        if orders.exit and not orders.train:
            self._sweep_ended()
        return 0.0 if orders.train else self._poll_seconds

    def _on_failure(self, agent: Agent, reply: Reply) -> float:
        """Back off."""
        words = wire.error_text(reply.body)
        log.warning("claim_failed", agent=agent.number, status=reply.status, reason=words)
        if reply.status == HTTPStatus.NOT_FOUND:
            agent.unknown = True
            self._sweep_ended()  # it may be the whole sweep that is gone
        return self._guards.upstream.failed(reply.status, words, reply.retry_after_seconds)
