"""One claim's way to a lease: ask, settle the conflict, wait, ask again.

Owns the conversation of a single token with Redis. The token is on disk before `negotiate` is
called, and stays the same however often an exchange fails. It must never release.
"""

from dataclasses import dataclass
from typing import Final, assert_never

import anyio
import anyio.lowlevel
import structlog

from coordinator.core.lease import (
    Claim,
    Conflict,
    Drop,
    Dropped,
    DropReason,
    LeaseSettings,
    Wait,
    settle,
)
from coordinator.errors import PeerError
from coordinator.leases.answers import (
    AcquireAnswer,
    Finished,
    Granted,
    Late,
    NotYet,
    Quarantined,
    Void,
)
from coordinator.leases.clock import boottime_seconds
from coordinator.leases.holdings import Holdings
from coordinator.leases.renewal import jittered
from coordinator.leases.sight import Sight, explain
from coordinator.leases.store import TROUBLE, Store
from coordinator.leases.wakeups import Waiter, Wakeups

log = structlog.get_logger()

_UNKNOWN_AGE: Final = 1e8
"""Seconds, three years: a re-asserted lease has no known age and shows a larger one."""


@dataclass(frozen=True, slots=True)
class Won:
    """The lease was granted by a request that was sent at `sent_seconds`."""

    fence: int
    why: str
    sent_seconds: float


class Negotiation:
    """The conversation of `token` for `claim`."""

    def __init__(
        self,
        claim: Claim,
        token: str,
        *,
        store: Store,
        holdings: Holdings,
        sight: Sight,
        settings: LeaseSettings,
        limit: anyio.CapacityLimiter,
    ) -> None:
        self.claim = claim
        self.token = token
        self._store = store
        self._holdings = holdings
        self._sight = sight
        self._settings = settings
        self._limit = limit
        self._refused_at: float | None = None
        self._looks = 0
        self._told: set[str] = set()
        self.asked = False
        """A request has been sent."""
        self.unsure = False
        """The outcome of a request is unknown: it may be executed yet."""
        self.closed = False
        """Set to end the conversation at its next step."""

    async def negotiate(self, wakeups: Wakeups) -> Won | Dropped:
        """Until granted or dropped. Raises PeerError once `closed`."""
        with wakeups.waiter(self.claim.run_id) as waiter:
            while True:
                if self.closed:
                    await anyio.lowlevel.checkpoint()  # a claim that is cancelled too learns that
                    raise PeerError("the lease keeper is closing")
                waiter.rearm()
                sent = boottime_seconds()
                answer = await self._ask()
                if isinstance(answer, Granted):
                    return Won(answer.fence, answer.why, sent)
                result = self._consider(answer)
                if isinstance(result, Dropped):
                    return result
                await self._pause(waiter, result)

    async def _ask(self) -> AcquireAnswer | None:
        """One request; None when its outcome is unknown. Not cut short, bounded by its deadline."""
        async with self._limit:
            self.asked = True
            try:
                with anyio.CancelScope(shield=True):
                    answer = await self._store.acquire(
                        self.claim, self.token, self._holdings.highest_fence
                    )
            except TROUBLE as error:
                self.unsure = True
                self._sight.doubt()
                self._tell_once("lease_acquire_delayed", explain(error, self._settings))
                return None
        self._sight.trust()
        await anyio.lowlevel.checkpoint()
        return answer

    def _consider(
        self, answer: Conflict | Finished | Quarantined | NotYet | Late | Void | None
    ) -> Dropped | float:
        """A result, or how many seconds to wait at most."""
        match answer:
            case None:
                return jittered(self._settings.renew_seconds / 8, 0.5)
            case Late():
                return jittered(self._settings.timeout_seconds / 20, 0.5)
            case Void():
                raise PeerError(f"Redis says that the token of run {self.claim.run_id} is void")
            case Finished(node):
                detail = f"it finished on node {node}"
                return Dropped(self.claim.run_id, DropReason.FINISHED, None, detail)
            case Quarantined(why):
                return Dropped(self.claim.run_id, DropReason.QUARANTINED, None, why)
            case NotYet(seconds, why):
                self._tell_once("lease_wait_began", why)
                return seconds + jittered(self._settings.timeout_seconds / 8, 1.0)
            case Conflict():
                return self._settle(answer)
            case _:
                assert_never(answer)

    def _settle(self, conflict: Conflict) -> Dropped | float:
        now = boottime_seconds()
        if self._refused_at is None:
            self._refused_at = now
        self._holdings.saw_fence(conflict.fence)
        decision = settle(conflict, now - self._refused_at, self._settings)
        match decision:
            case Wait(seconds):
                self._tell_once("lease_wait_began", f"held by {conflict.holder}")
                return seconds
            case Drop(reason):
                age = conflict.age_seconds
                since = f"for {age:.1f} seconds" if age < _UNKNOWN_AGE else "since before a wipe"
                detail = f"held by {conflict.holder} with fence {conflict.fence} {since}"
                return Dropped(self.claim.run_id, reason, conflict.holder, detail)
            case _:
                assert_never(decision)

    async def _pause(self, waiter: Waiter, seconds: float) -> None:
        """The timer is the truth, the stream the accelerator, the slow poll the floor.

        The poll grows slower with each look, down to one a renewal: it is for what the stream has
        not told, and thousands may wait.
        """
        slowest = self._settings.renew_seconds
        floor = jittered(min(slowest / 4 * 2**self._looks, slowest))
        self._looks = min(self._looks + 1, 2)
        await waiter.wait(max(min(seconds, floor), 0.005))

    def _tell_once(self, event: str, why: str) -> None:
        if event in self._told:
            return
        self._told.add(event)
        fields = {"run_id": self.claim.run_id, "slot": self.claim.slot, "why": why}
        if event == "lease_wait_began":
            log.info("lease_wait_began", **fields)
        else:
            log.warning("lease_acquire_delayed", **fields)
