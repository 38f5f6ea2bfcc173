"""Where faults happen: what stacks and whole daemons have in common.

Owns the words in which a fault acts on its place, so that the same faults serve both forms.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from coordinator.core.lease import LeaseSettings
from coordinator.leases.connection import open_client
from tests.nemesis.clock import JumpingClock
from tests.support.redis import FaultProxy, RedisServer

ADMIN_SECONDS = 120.0


class Place(ABC):
    """A Redis and some nodes, each behind a proxy of its own; nodes are meant by name."""

    redis: RedisServer
    settings: LeaseSettings
    proxies: dict[str, FaultProxy]
    clock: JumpingClock | None
    slots: int
    """Of all nodes together."""
    slack_seconds: float
    """What a loaded machine may hold up a process, or its start."""

    @property
    def nodes(self) -> list[str]:
        """Their names."""
        return list(self.proxies)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Redis]:
        """A client that no fault stands in front of, and that waits for a busy server."""
        client = open_client(self.redis.url, timeout_seconds=ADMIN_SECONDS, connections=2)
        assert isinstance(client, Redis)
        try:
            yield client
        finally:
            await client.aclose()

    @abstractmethod
    async def rehand(self, node: str | None = None) -> None:
        """Let the server take the living runs of `node` (None: of all) for dead."""

    @abstractmethod
    def send(self, node: str, signum: int) -> None:
        """Signal the node's daemon or stack alone."""

    @abstractmethod
    async def prepare(self, node: str) -> None:
        """Make ready for a quick `start` that follows a `kill`."""

    @abstractmethod
    async def kill(self, node: str) -> None:
        """SIGKILL to the node's daemon or stack alone; its trainings live on."""

    @abstractmethod
    async def start(self, node: str) -> None:
        """Start the node's daemon or stack."""

    def disturb(self, *, on: bool) -> None:  # noqa: B027 - most need not know
        """An episode of faults begins or ends."""


def longest_silence(settings: LeaseSettings) -> float:
    """How long a fault may keep a node from Redis so that none of its leases can be taken.

    The last renewal may lie one interval back, and after the fault one time-out and one pause may
    pass before the next succeeds.
    """
    away = 1.1 * (settings.renew_seconds + settings.renew_seconds / 4) + settings.timeout_seconds
    return settings.ttl_seconds + settings.grace_seconds - away
