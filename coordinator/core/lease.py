"""Decisions about leases: claims, leases and conflicts, and what follows from them.

Owns the timing relations, the settlement of a conflict at a claim and the holder's state machine.
It must never read a clock, a journal or Redis: the shells in `coordinator.leases` do.

The holder's state machine, one for each lease held (time since the last acknowledged renewal):

    HELD -- a renewal failed --> UNCERTAIN -- the TTL passed --> EXPIRED_LOCAL
      ^---------- renewed ----------+------------- renewed -----------'
    any of them -- another owner, higher fence --> LOST       (kill the tree, forget)
    any of them -- freed by an operator --------> FREED       (stop gracefully, release)
    strict, silence >= TTL - stop budget -------> SURRENDERED (stop in time, release)

Only LOST and RELEASED end the renewal of a lease. Only the knowledge of another owner leads to
LOST. Losing Redis does not: it must never end a healthy training.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.core.model import CommandKind
from coordinator.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Timing of the leases, in seconds; relations are checked on creation.

    Raises ConfigError that names the key. The relations follow client-go's leader election, which
    refuses timings that cannot work in its constructor.
    """

    ttl_seconds: float = 60.0
    """How long a lease lasts without a renewal."""
    renew_seconds: float = 10.0
    """Time between two renewals, +-10 %."""
    grace_seconds: float = 30.0
    """How long others wait after the TTL, so that the holder can stop."""
    handoff_seconds: float = 30.0
    """How long a claim waits for a holder that is alive and renewing."""
    race_window_seconds: float = 30.0
    """If the lease is younger than this, a second claim is a race; otherwise a hand-off."""
    on_lease_loss: Literal["continue", "strict"] = "continue"
    timeout_seconds: float = 2.0
    """Time limit of one request to Redis."""
    stop_budget_seconds: float = 10.0
    """How long stopping a training may take."""

    def __post_init__(self) -> None:
        for key in ("ttl_seconds", "renew_seconds", "timeout_seconds"):
            if (value := getattr(self, key)) <= 0:
                raise _too_small(key, value, "must be more than 0 s")
        for key in ("grace_seconds", "handoff_seconds", "race_window_seconds"):
            if (value := getattr(self, key)) < 0:
                raise _too_small(key, value, "must be at least 0 s")
        least = 3 * self.renew_seconds + 2 * self.timeout_seconds
        if self.ttl_seconds < least:
            raise _too_small(
                "ttl_seconds",
                self.ttl_seconds,
                f"at least {least:g} s with renew_seconds = {self.renew_seconds:g} and "
                f"timeout_seconds = {self.timeout_seconds:g}",
            )
        if self.grace_seconds < self.stop_budget_seconds:
            raise _too_small(
                "grace_seconds",
                self.grace_seconds,
                f"must be at least stop_budget_seconds, {self.stop_budget_seconds:g} s",
            )
        self._check_strict()

    def _check_strict(self) -> None:
        if self.on_lease_loss != "strict":
            return
        least = self.stop_budget_seconds + self.renew_seconds + 2 * self.timeout_seconds
        if self.ttl_seconds < least:
            raise _too_small(
                "ttl_seconds",
                self.ttl_seconds,
                f'at least {least:g} s with on_lease_loss = "strict", '
                f"stop_budget_seconds = {self.stop_budget_seconds:g}, "
                f"renew_seconds = {self.renew_seconds:g} and "
                f"timeout_seconds = {self.timeout_seconds:g}",
            )

    @property
    def stop_after_seconds(self) -> float:
        """Strict mode: silence after which a stop is due, minus the time of one request."""
        return self.ttl_seconds - self.stop_budget_seconds - self.timeout_seconds

    @property
    def silent_after_seconds(self) -> float:
        """Two renewals and a time-out without a sign make a holder silent, not yet dead."""
        return 2.2 * self.renew_seconds + self.timeout_seconds

    @property
    def settle_seconds(self) -> float:
        """How long resumed runs wait after Redis was found empty, so that owners can re-assert."""
        return self.ttl_seconds + self.grace_seconds


def _too_small(key: str, value: float, least: str) -> ConfigError:
    return ConfigError(f"[redis] {key} = {value:g} is too small", least)


# --- what is claimed and what is held -------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Claim:
    """What the W&B server handed out to one agent; `args` must be JSON values."""

    run_id: str
    kind: CommandKind
    slot: int
    program: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to train one run. Its owner is one claim, named by `token`, never the node."""

    run_id: str
    kind: CommandKind
    token: str
    fence: int
    slot: int


class DropReason(enum.StrEnum):
    """Why a claim is dropped."""

    RACE = "race"
    """The holder has just started: the server handed the run out twice."""
    HANDOFF_TIMEOUT = "handoff_timeout"
    """The wait ended with the holder alive and renewing."""
    FINISHED = "finished"
    """The run finished here since the server queued it."""
    QUARANTINED = "quarantined"
    """The run failed each time it was resumed."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A claim that got no lease: ask upstream for other work at once."""

    run_id: str
    reason: DropReason
    holder: str | None
    detail: str


# --- a conflict at a claim ------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Conflict:
    """Another claim's lease as Redis knows it, all times by its clock."""

    holder: str
    fence: int
    age_seconds: float
    """Since the grant; infinite when the lease was re-asserted or a clock has jumped."""
    silent_seconds: float
    """Since the last renewal."""
    claimable_in_seconds: float
    freed: bool = False
    """An operator has freed it, and its holder is stopping."""
    closing: bool = False
    """The holder has announced that its training is ending."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again after at most this time, or when the lease's end is announced."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the claim."""

    reason: DropReason


def settle(conflict: Conflict, waited_seconds: float, settings: LeaseSettings) -> Wait | Drop:
    """Whether a claim that met `conflict` keeps waiting or is dropped; called at each wake-up.

    `waited_seconds` counts from the first refusal. For a silent holder it waits until the lease
    can be claimed, however long that takes: such a wait certainly ends.
    """
    alive = _is_alive(conflict, settings)
    if conflict.freed or not alive:
        return Wait(max(conflict.claimable_in_seconds, 0.0))
    if not conflict.closing and conflict.age_seconds < settings.race_window_seconds:
        return Drop(DropReason.RACE)
    left = settings.handoff_seconds - waited_seconds
    if left <= 0:
        return Drop(DropReason.HANDOFF_TIMEOUT)
    return Wait(min(left, max(conflict.claimable_in_seconds, 0.0)))


def _is_alive(conflict: Conflict, settings: LeaseSettings) -> bool:
    return conflict.silent_seconds <= settings.silent_after_seconds


# --- the holder's state machine -------------------------------------------------------------------
class HolderState(enum.StrEnum):
    """A holder's knowledge about one of its leases."""

    HELD = "held"
    UNCERTAIN = "uncertain"
    """The last renewal failed; by its own clock the lease is still valid."""
    EXPIRED_LOCAL = "expired_local"
    """No renewal was acknowledged for the TTL: others can claim it soon, if they reach Redis."""
    SURRENDERED = "surrendered"
    """Strict mode: the stop was asked for before others can claim."""
    FREED = "freed"
    """An operator took it back: the stop was asked for."""
    LOST = "lost"
    """Another owner with a higher fence is known: kill the process tree at once."""
    RELEASED = "released"


class HolderEvent(enum.StrEnum):
    """The events of a held lease."""

    RENEWED = "renewed"
    MISSED = "missed"
    TTL_PASSED = "ttl_passed"
    STOP_DUE = "stop_due"
    FREED = "freed"
    TAKEN = "taken"
    RELEASED = "released"


_S, _E = HolderState, HolderEvent
_LIVE = {
    _E.RENEWED: _S.HELD,
    _E.MISSED: _S.UNCERTAIN,
    _E.TTL_PASSED: _S.EXPIRED_LOCAL,
    _E.STOP_DUE: _S.SURRENDERED,
    _E.FREED: _S.FREED,
    _E.TAKEN: _S.LOST,
    _E.RELEASED: _S.RELEASED,
}


def _stays(state: HolderState) -> dict[HolderEvent, HolderState]:
    """A stop was asked for: only its end or another owner changes anything."""
    return dict.fromkeys(HolderEvent, state) | {_E.TAKEN: _S.LOST, _E.RELEASED: _S.RELEASED}


TABLE: Mapping[HolderState, Mapping[HolderEvent, HolderState]] = {
    _S.HELD: _LIVE,
    _S.UNCERTAIN: _LIVE,
    _S.EXPIRED_LOCAL: _LIVE | {_E.MISSED: _S.EXPIRED_LOCAL},
    _S.SURRENDERED: _stays(_S.SURRENDERED),
    _S.FREED: _stays(_S.FREED),
    _S.LOST: _stays(_S.LOST),
    _S.RELEASED: dict.fromkeys(HolderEvent, _S.RELEASED),
}
RENEWABLE = frozenset(HolderState) - {_S.LOST, _S.RELEASED}


def step(state: HolderState, event: HolderEvent) -> HolderState:
    """The state after `event`. The table is total, so there is no illegal pair."""
    return TABLE[state][event]


def silence(now_seconds: float, sent_seconds: float, settings: LeaseSettings) -> HolderEvent:
    """What a failed renewal means; `sent_seconds` is when the last successful one was *sent*.

    Both are CLOCK_BOOTTIME readings, which include the time that the machine was suspended.
    """
    quiet = now_seconds - sent_seconds
    if settings.on_lease_loss == "strict" and quiet >= settings.stop_after_seconds:
        return HolderEvent.STOP_DUE
    if quiet >= settings.ttl_seconds:
        return HolderEvent.TTL_PASSED
    return HolderEvent.MISSED


# --- health ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Health:
    """How well this node reaches Redis; `since_seconds` is the age of the last acknowledgement."""

    state: Literal["ok", "uncertain", "lost"]
    detail: str
    since_seconds: float


def judge_health(silent_seconds: float, trouble: str, settings: LeaseSettings) -> Health:
    """`trouble` is the last failure's text, empty if the last request succeeded."""
    if silent_seconds >= settings.ttl_seconds:
        text = trouble or "no renewal was acknowledged for longer than the TTL"
        return Health("lost", text, silent_seconds)
    late = 1.2 * settings.renew_seconds + 2 * settings.timeout_seconds
    if trouble or silent_seconds > late:
        return Health("uncertain", trouble or "the last renewal is overdue", silent_seconds)
    return Health("ok", "", silent_seconds)


__all__ = [
    "RENEWABLE",
    "TABLE",
    "Claim",
    "Conflict",
    "Drop",
    "DropReason",
    "Dropped",
    "Health",
    "HolderEvent",
    "HolderState",
    "Lease",
    "LeaseSettings",
    "Wait",
    "judge_health",
    "settle",
    "silence",
    "step",
]
