"""Data about runs and nodes of the whole sweep: the answers to `leases show` and `nodes`.

Owns their shape, which is part of the control protocol: docs/control.md documents each field, and
fields are only added. Changes nothing.
"""

from typing import Any

import msgspec

from coordinator.core.model import Outcome
from coordinator.core.protocol import LeaseView


class LeaseDetailView(LeaseView, frozen=True):
    """One lease with everything that Redis knows about it and its run; times are UTC, RFC 3339."""

    why: str
    """How the holder got it: claim, takeover or reassert; operator if it was taken back."""
    silent_seconds: float
    """Since its last renewal."""
    claimable_in_seconds: float
    """Until others can claim it without a release; negative when they can."""
    closing: bool
    """The holder has announced that its training is ending."""
    handoff_to: str | None
    """The node for which it is reserved."""
    handoff_seconds: float
    """How long it stays reserved for that node; 0 if it is not."""
    program: str
    args: Any
    """As the W&B server sent them."""
    attempts: int
    """Stays that ended under a lease, on all nodes."""
    outcomes: dict[str, int]
    """The same by outcome, without zeros."""
    last_outcome: Outcome | None
    last_outcome_at: str | None
    last_outcome_node: str | None
    drops: int
    """Claims for the run that were dropped because another claim held it."""
    last_drop: str | None
    """race or handoff_timeout."""
    last_drop_at: str | None
    last_drop_node: str | None
    rescues: int
    """How often it was queued to run again without the W&B server."""
    quarantined: str | None = None
    """Why no node takes the run any more; None if nodes do."""


class NodeView(msgspec.Struct, frozen=True):
    """One node as the others see it; its own data are as old as its last renewal."""

    node: str
    alive: bool
    """False once it has been silent for longer than two renewals and a time-out."""
    silent_seconds: float
    last_seen: str
    """UTC, by the clock of Redis."""
    sweep: str
    version: str | None
    state: str | None
    """A value of `NodeState`; for a silent node the last known one."""
    slots: int | None
    """Desired number of slots."""
    busy: int | None
    """Slots with a run."""
    pid: int | None
    """Of the daemon, on its own machine."""
    leases_held: int
    """Leases that it holds, whether or not it is alive."""
