"""Spreads starts of agents and questions for work over time, on this node and over the sweep.

Owns the node's paces. A burst is free, so that ordinary work never waits; only storms are spread.
"""

from dataclasses import dataclass
from time import monotonic

import structlog

from coordinator.core.pace import Pace
from coordinator.errors import CoordinatorError
from coordinator.leases import Shared

log = structlog.get_logger()

SAY_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """`[pacing]` of the configuration."""

    starts: Pace
    claims: Pace
    sweep_claims: Pace
    """Its time is Redis's own."""


class Pacer:
    """See the module."""

    def __init__(self, settings: PaceSettings, shared: Shared | None) -> None:
        self._starts = settings.starts
        self._claims = settings.claims
        self._sweep = settings.sweep_claims
        self._shared = shared
        self._said_at: dict[str, float] = {}

    def starts(self, wanted: int) -> int:
        """How many of the agents that are wanted may be started now; they are counted."""
        now = monotonic()
        count = min(wanted, self._starts.ready(now))
        self._starts = self._starts.took(count, now)
        if count < wanted:
            self._say("agent_start", self._starts.wait_seconds(now))
        return count

    async def claim_wait_seconds(self) -> float:
        """0.0: a question for work may be sent now, and is counted; else wait and ask again."""
        now = monotonic()
        if (wait := self._claims.wait_seconds(now)) > 0:
            self._say("claim", wait)
            return wait
        if (wait := await self._sweep_wait()) > 0:
            self._say("sweep_claim", wait)
            return wait
        self._claims = self._claims.took(1, now)
        return 0.0

    async def _sweep_wait(self) -> float:
        if self._shared is None:
            return 0.0
        try:
            return await self._shared.pace(self._sweep.per_second, self._sweep.burst)
        except CoordinatorError:  # without Redis there is no lease either, so nothing can pile up
            return 0.0

    def _say(self, what: str, wait: float) -> None:
        now = monotonic()
        if now - self._said_at.get(what, -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS:
            self._said_at[what] = now
            log.info("paced", what=what, wait_seconds=round(wait, 3))
