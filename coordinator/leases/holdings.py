"""What this node holds: one record for each lease, moved on by the core's table.

Owns the set of held leases and their states, and tells of each change that matters, once. It must
never talk to Redis or the disk.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from coordinator.core.lease import (
    RENEWABLE,
    Claim,
    HolderEvent,
    HolderState,
    Lease,
    LeaseSettings,
    silence,
    step,
)

log = structlog.get_logger()

STOPS: Final = frozenset({HolderState.LOST, HolderState.FREED, HolderState.SURRENDERED})
"""States in which somebody has to stop the training."""


@dataclass(slots=True)
class Holding:
    """One lease that is held; `sent_seconds` is when its last good renewal was sent.

    Until it is `handed_out` no training can run under it, so there is nothing to stop.
    """

    lease: Lease
    claim: Claim
    sent_seconds: float
    state: HolderState = HolderState.HELD
    handed_out: bool = True


class Holdings:
    """All holdings by token. `on_stop(lease, state)` is called once a lease enters `STOPS`."""

    def __init__(
        self, settings: LeaseSettings, on_stop: Callable[[Lease, HolderState], None]
    ) -> None:
        self._settings = settings
        self._on_stop = on_stop
        self._by_token: dict[str, Holding] = {}
        self.highest_fence = 0
        """Highest fencing token that this node has ever seen: the hint of its acquires."""

    def __len__(self) -> int:
        return len(self._by_token)

    def add(self, holding: Holding) -> None:
        """Held from now on."""
        self._by_token[holding.lease.token] = holding
        self.saw_fence(holding.lease.fence)

    def remove(self, token: str) -> Holding | None:
        """No longer held; None when it was not."""
        return self._by_token.pop(token, None)

    def get(self, token: str) -> Holding | None:
        """The holding, or None."""
        return self._by_token.get(token)

    def leases(self) -> list[Lease]:
        """Everything that is held, lost leases included until they are forgotten."""
        return [holding.lease for holding in self._by_token.values()]

    def hand_out(self, holding: Holding, now_seconds: float) -> bool:
        """Whether a training may start under it now; from then on its end is told."""
        holding.handed_out = self._stands(holding, now_seconds)
        return holding.handed_out

    def stands(self, token: str, now_seconds: float) -> bool:
        """Whether a training may start under it, so far as is known now."""
        holding = self._by_token.get(token)
        return holding is not None and self._stands(holding, now_seconds)

    def _stands(self, holding: Holding, now_seconds: float) -> bool:
        held = holding.state in {HolderState.HELD, HolderState.UNCERTAIN}
        return held and now_seconds - holding.sent_seconds < self._settings.ttl_seconds

    def renewable(self) -> list[Lease]:
        """What the next renewal asks for."""
        held = self._by_token.values()
        return [holding.lease for holding in held if holding.state in RENEWABLE]

    @property
    def oldest_sent_seconds(self) -> float | None:
        """When the last good renewal of the most silent lease was sent; None without leases."""
        held = self._by_token.values()
        return min((holding.sent_seconds for holding in held), default=None)

    def saw_fence(self, fence: int) -> None:
        """Remember `fence` for the hint."""
        self.highest_fence = max(self.highest_fence, fence)

    def renewed(self, token: str, sent_seconds: float, fence: int) -> None:
        """The renewal that was sent at `sent_seconds` succeeded."""
        holding = self._by_token.get(token)
        if holding is None:
            return
        holding.sent_seconds = max(holding.sent_seconds, sent_seconds)
        if fence != holding.lease.fence:
            holding.lease = replace(holding.lease, fence=fence)
            self.saw_fence(fence)
        self.apply(token, HolderEvent.RENEWED)

    def missed(self, now_seconds: float) -> None:
        """A round failed: every lease that it did not reach learns how long it has been silent."""
        for token, holding in list(self._by_token.items()):
            if now_seconds - holding.sent_seconds > self._settings.timeout_seconds / 2:
                self.apply(token, silence(now_seconds, holding.sent_seconds, self._settings))

    def apply(self, token: str, event: HolderEvent) -> None:
        """One step of the table; leases that are not held any more are left alone."""
        holding = self._by_token.get(token)
        if holding is None:
            return
        before, holding.state = holding.state, step(holding.state, event)
        if before is not holding.state:
            _tell(holding, before)
            if holding.state in STOPS and holding.handed_out:
                self._on_stop(holding.lease, holding.state)


def _tell(holding: Holding, before: HolderState) -> None:
    lease = holding.lease
    fields = {"run_id": lease.run_id, "slot": lease.slot, "fence": lease.fence}
    match holding.state:
        case HolderState.EXPIRED_LOCAL:
            log.warning("lease_expired_locally", **fields)
        case HolderState.LOST:
            log.error("lease_fenced", **fields)
        case HolderState.FREED:
            log.warning("lease_freed", **fields)
        case HolderState.SURRENDERED:
            log.warning("lease_surrendered", **fields)
        case HolderState.RELEASED:
            pass  # told when Redis has answered
        case HolderState.HELD if before is HolderState.EXPIRED_LOCAL:
            log.info("lease_renewed_late", **fields)
        case _:
            log.debug("lease_state_changed", before=before, state=holding.state, **fields)
