"""What the scripts for operators answer, as records, and what a node says of itself.

Owns the reading of `show.lua`, `nodes.lua` and `free.lua` and the form of a node's facts. It must
never decide what follows from an answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from coordinator.core.cluster import LeaseDetailView
from coordinator.core.model import Outcome
from coordinator.leases.answers import read_list

LISTED: Final = 9
"""How many fields a lease has in `list.lua` and first in `show.lua`."""
_PER_OUTCOME: Final = "attempts:"
REGISTRY_FIELDS: Final = (
    "program",
    "args",
    "attempts",
    "outcome",
    "outcome_at",
    "outcome_node",
    "drops",
    "dropped_at",
    "dropped_by",
    "dropped_why",
    "rescues",
    "quarantined",
    *(f"{_PER_OUTCOME}{outcome.value}" for outcome in Outcome),
)


class NodeFacts(msgspec.Struct, frozen=True):
    """What a node says of itself at each renewal; an older or newer one may say less or more."""

    version: str | None = None
    state: str | None = None
    slots: int | None = None
    busy: int | None = None
    pid: int | None = None
    leases: int = 0


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node of the registry; `seen_at` is UTC by the server's clock."""

    name: str
    silent_seconds: float
    seen_at: str
    facts: NodeFacts


class FreeStatus(StrEnum):
    """What an operator's release met; `free.lua` explains each."""

    FREED = "freed"
    MISSING = "missing"
    CHANGED = "changed"
    RELEASED = "released"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Freed:
    """The answer to it; `fence` and `holder` are those of the record."""

    status: FreeStatus
    fence: int
    holder: str
    silent_seconds: float


def read_freed(reply: Sequence[Any]) -> Freed:
    """The part of the answer that follows the server's time and epoch."""
    status, fence, holder, silent = reply
    return Freed(FreeStatus(status), int(fence), holder, int(silent) / 1000)


def read_nodes(now_ms: int, reply: Sequence[Any]) -> list[NodeSeen]:
    """The part of the answer that follows the server's time."""
    triples = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    return [
        NodeSeen(name, max(now_ms - int(seen), 0) / 1000, utc(seen) or "", _facts(facts))
        for name, seen, facts in triples
    ]


def read_detail(reply: Sequence[Any]) -> LeaseDetailView | None:
    """The part of the answer that follows the server's time; None without a record."""
    if int(reply[0]) == 0:
        return None
    listed, rest = reply[1 : 1 + LISTED], reply[1 + LISTED :]
    (lease,) = read_list(listed)
    why, silent, target, handoff, closing, *values = rest
    run = dict(zip(REGISTRY_FIELDS, map(str, values), strict=True))
    return LeaseDetailView(
        **msgspec.structs.asdict(lease),
        why=why,
        silent_seconds=int(silent) / 1000,
        claimable_in_seconds=int(listed[-1]) / 1000,
        closing=closing == "1",
        handoff_to=target or None,
        handoff_seconds=int(handoff) / 1000,
        program=run["program"],
        args=json.loads(run["args"] or "null"),
        attempts=int(run["attempts"] or 0),
        outcomes=_outcomes(run),
        last_outcome=Outcome(run["outcome"]) if run["outcome"] else None,
        last_outcome_at=utc(run["outcome_at"]),
        last_outcome_node=run["outcome_node"] or None,
        drops=int(run["drops"] or 0),
        last_drop=run["dropped_why"] or None,
        last_drop_at=utc(run["dropped_at"]),
        last_drop_node=run["dropped_by"] or None,
        rescues=int(run["rescues"] or 0),
        quarantined=run["quarantined"] or None,
    )


def utc(milliseconds: str) -> str | None:
    """A time of the server as it stands in records; None for a missing one."""
    if not milliseconds:
        return None
    moment = datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds")


def _outcomes(run: Mapping[str, str]) -> dict[str, int]:
    counts = {o.value: int(run[f"{_PER_OUTCOME}{o.value}"] or 0) for o in Outcome}
    return {outcome: count for outcome, count in counts.items() if count}


def _facts(text: str) -> NodeFacts:
    """What it said, or nothing when that is not understood: one odd node must hide no other."""
    try:
        return msgspec.json.decode(text, type=NodeFacts)
    except msgspec.MsgspecError:
        return NodeFacts()
