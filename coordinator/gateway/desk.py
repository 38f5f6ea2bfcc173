"""What the gateway asks of whoever runs the pool, and what it offers in return."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from coordinator.core.wire import Orders


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered to a request that we understand."""

    status: int
    body: bytes
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class IdleBeat:
    """A heartbeat of an agent without a run: a claim, held here."""

    agent_id: str
    ask: Callable[[], Awaitable[Reply]]
    """Send it upstream, as often as one likes; a lost connection is a Reply of status 502."""


class Desk(Protocol):
    """The pool as the gateway sees it. `token` is the agent's secret path token."""

    def knows(self, token: str) -> bool:
        """True for an agent that we started."""

    def registered(self, token: str, agent_id: str) -> None:
        """The server has taken the agent on."""

    def turned_away(self, token: str, reply: Reply) -> str | None:
        """The server has refused to take the agent on; the ID of one that is to be our guest."""

    def is_guest(self, token: str) -> bool:
        """True for an agent of which the server does not know: it is not to hear of it."""

    def troubled(self, token: str, reply: Reply) -> None:
        """The server answered an agent with 401, 403, 429 or 5xx, or not at all."""

    async def due(self, token: str) -> bool:
        """Hold the heartbeat of an agent with a run until the server is to hear of it; False: it
        is not to, the run is over."""

    def ordered(self, token: str, orders: Orders) -> bool:
        """The server has given orders to an agent with a run; False: it is to hear of none now."""

    async def idle(self, token: str, beat: IdleBeat) -> bytes:
        """Hold a claim; the body of the answer to the agent."""
