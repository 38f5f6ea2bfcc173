"""The interface between the gateway and the pool."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from coordinator.core.wire import Orders


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's answer to a request that we understand."""

    status: int
    body: bytes
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class IdleBeat:
    """A heartbeat of an agent without a run: a claim, held here."""

    agent_id: str
    ask: Callable[[], Awaitable[Reply]]
    """Send it upstream, any number of times; a lost connection is a Reply of status 502."""


class Desk(Protocol):
    """The pool as the gateway sees it. `token` is the agent's secret path token."""

    def knows(self, token: str) -> bool:
        """True if we started this agent."""

    def registered(self, token: str, agent_id: str) -> None:
        """The server has registered the agent."""

    def turned_away(self, token: str, reply: Reply) -> str | None:
        """The server refused to register the agent; an ID if the gateway admits it itself."""

    def is_guest(self, token: str) -> bool:
        """True if the server does not know the agent and must not get its requests."""

    def troubled(self, token: str, reply: Reply) -> None:
        """The server answered an agent with 401, 403, 429 or 5xx, or not at all."""

    async def due(self, token: str) -> bool:
        """Hold the heartbeat of an agent with a run until it should go to the server; False: do not
        send it, the run is over."""

    def ordered(self, token: str, orders: Orders) -> bool:
        """The server has sent commands to an agent with a run; False: do not pass them on now."""

    async def idle(self, token: str, beat: IdleBeat) -> bytes:
        """Hold a claim; returns the body of the answer to the agent."""
