"""What the scripts answer, as records.

Owns the reading of the scripts' lists. It must never decide what follows from an answer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coordinator.core.lease import Conflict
from coordinator.core.model import CommandKind
from coordinator.core.protocol import LeaseView
from coordinator.errors import PeerError


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is the token's; `why` is claim, takeover or again."""

    fence: int
    why: str


@dataclass(frozen=True, slots=True)
class Late:
    """The request was executed after its not-after time."""


@dataclass(frozen=True, slots=True)
class Void:
    """The token was released before."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The run finished on `node`."""

    node: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The run fails each time that it is resumed; `why` says how."""

    why: str


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nobody holds it, but it is granted to us only after `wait_seconds`; `why` says why."""

    wait_seconds: float
    why: str


AcquireAnswer = Granted | Late | Void | Finished | Quarantined | NotYet | Conflict


class RenewStatus(StrEnum):
    """What became of one lease at a renewal; `renew_many.lua` explains each."""

    OK = "ok"
    REASSERTED = "reasserted"
    TAKEN = "taken"
    FREED = "freed"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Renewed:
    """The answer for one lease; `fence` and `holder` are the record's."""

    status: RenewStatus
    fence: int
    holder: str


class ReleaseStatus(StrEnum):
    """What a release met; `release.lua` explains each."""

    RELEASED = "released"
    AGAIN = "again"
    ABSENT = "absent"
    NOT_YOURS = "not_yours"


@dataclass(frozen=True, slots=True)
class Released:
    """The answer to a release; `missed`: a claim for the run was dropped while we held it."""

    status: ReleaseStatus
    missed: bool


class OfferStatus(StrEnum):
    """What became of an offer; `offer.lua` explains each."""

    QUEUED = "queued"
    FINISHED = "finished"
    EXHAUSTED = "exhausted"
    QUARANTINED = "quarantined"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What may still have to be trained: the rescue queue, and leases that stand on any node."""

    rescues: int
    leases: int


@dataclass(frozen=True, slots=True)
class Rescue:
    """A run from the rescue queue."""

    run_id: str
    program: str
    args: dict[str, Any]
    silent_seconds: float | None
    """Since its holder was last heard of, which died without a word; None when it did not."""

    @property
    def lost(self) -> bool:
        """Its holder died without a word."""
        return self.silent_seconds is not None


class StealStatus(StrEnum):
    """What a steal met; `steal.lua` explains each."""

    FREED = "freed"
    MISSING = "missing"
    CHANGED = "changed"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Stolen:
    """The answer to a steal; `fence` and `holder` are those of the record now."""

    status: StealStatus
    fence: int
    holder: str


def read_acquire(reply: Sequence[Any]) -> AcquireAnswer:  # noqa: C901, PLR0911 - one for each answer
    """The part of the answer that follows the server's time and epoch."""
    match reply:
        case ["granted", fence, why]:
            return Granted(int(fence), str(why))
        case ["late"]:
            return Late()
        case ["void"]:
            return Void()
        case ["finished", node]:
            return Finished(str(node))
        case ["quarantined", why]:
            return Quarantined(str(why))
        case ["settling", wait]:
            return NotYet(int(wait) / 1000, "Redis was found empty, owners may re-assert first")
        case ["reserved", target, wait]:
            return NotYet(int(wait) / 1000, f"it is kept for node {target}")
        case ["held", owner, fence, age, silent, wait, state, closing]:
            return Conflict(
                holder=str(owner),
                fence=int(fence),
                age_seconds=int(age) / 1000,
                silent_seconds=int(silent) / 1000,
                claimable_in_seconds=int(wait) / 1000,
                freed=state == "freed",
                closing=bool(int(closing)),
            )
        case _:
            raise PeerError(f"unexpected answer of acquire.lua: {reply!r}")


def read_rescue(reply: Sequence[Any]) -> Rescue | None:
    """The run of a `take.lua` answer, if it gave one."""
    match reply:
        case [_, _, run_id, program, args, silent]:
            seconds = int(silent) / 1000 if silent else None
            return Rescue(str(run_id), str(program), json.loads(args), seconds)
        case _:
            return None


def read_renewals(reply: Sequence[Any]) -> list[Renewed]:
    """One record for each lease, in the order of the request."""
    triples = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    return [Renewed(RenewStatus(state), int(fence), holder) for state, fence, holder in triples]


def read_list(reply: Sequence[Any]) -> list[LeaseView]:
    """The leases of one page."""
    width = 9
    return [_view(reply[at : at + width]) for at in range(0, len(reply), width)]


def _view(row: Sequence[Any]) -> LeaseView:
    run_id, owner, slot, fence, state, kind, age, deadline, claimable = row
    if state == "held" and int(deadline) <= 0:
        state = "expired" if int(claimable) > 0 else "claimable"
    return LeaseView(
        run_id=run_id,
        owner=owner,
        slot=int(slot) if slot else None,
        fence=int(fence),
        state=state,
        kind=CommandKind(kind),
        age_seconds=int(age) / 1000,
        expires_in_seconds=int(deadline) / 1000,
    )
