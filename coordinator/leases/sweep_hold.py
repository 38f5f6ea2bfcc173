"""The right to change the sweep's own state: one node at a time, and what people did is remembered.

Owns the key `sweep`. It must never touch a run's lease, and never change the sweep itself.
"""

import enum
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

import structlog

from coordinator.core.lease import LeaseSettings
from coordinator.core.sweep import SweepVerb
from coordinator.errors import PeerError
from coordinator.leases.keys import Keys
from coordinator.leases.sight import explain
from coordinator.leases.store import TROUBLE, Store

log = structlog.get_logger()
T = TypeVar("T")


class HoldStatus(enum.StrEnum):
    """What became of the wish to change the sweep."""

    GRANTED = "granted"
    BUSY = "busy"
    """Another node is at it."""
    ENDED = "ended"
    """A person stopped or cancelled the sweep with coordinatorctl."""
    AGAIN = "again"
    """It was revived for the same runs already, and none of them ran since."""


@dataclass(slots=True)
class Hold:
    """One answer; who was granted it sets `worked` before the block ends."""

    status: HoldStatus
    detail: str = ""
    """The node that is at it, or what the person did."""
    rescues: int = 0
    """Runs in the rescue queue."""
    worked: bool = False


class SweepHold:
    """See the module. Each method raises PeerError when Redis does not answer."""

    def __init__(self, store: Store, keys: Keys, node: str, settings: LeaseSettings) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._settings = settings

    @asynccontextmanager
    async def taken(
        self, verb: SweepVerb, hold_seconds: float, waits: Sequence[str] = ()
    ) -> AsyncIterator[Hold]:
        """Hold the sweep for at most `hold_seconds`, if it is granted; ended with the block.

        `waits`: what the server has queued, for a revival.
        """
        token, keys = uuid4().hex, self._keys
        args: list[str | int] = [token, self._node, round(hold_seconds * 1000), verb.value,
                                 " ".join(sorted(waits)), keys.run("")]  # fmt: skip
        reply = await self._answered(
            self._store.call("take_sweep", [keys.sweep_state, keys.rescue, keys.epoch], args)
        )
        hold = Hold(HoldStatus(reply[0]), str(reply[1]), int(reply[2]))
        try:
            yield hold
        finally:
            if hold.status is HoldStatus.GRANTED:
                await self._end(token, verb, hold)

    async def _end(self, token: str, verb: SweepVerb, hold: Hold) -> None:
        """Bounded by the store's deadline; unanswered, the hold runs out by itself."""
        args: list[str | int] = [token, verb.value, int(hold.worked)]
        try:
            await self._store.call("end_sweep", [self._keys.sweep_state, self._keys.epoch], args)
        except TROUBLE as error:
            log.warning("sweep_hold_left", verb=verb, reason=explain(error, self._settings))

    async def _answered(self, exchange: Awaitable[T]) -> T:
        try:
            return await exchange
        except TROUBLE as error:
            raise PeerError(f"Redis: {explain(error, self._settings)}") from error
