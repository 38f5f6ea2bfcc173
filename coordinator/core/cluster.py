"""What is known of runs and nodes over the whole sweep: the answers to `leases show` and `nodes`.

Owns their shape, which is part of the control protocol: docs/control.md documents each field, and
fields are only ever added. Changes nothing.
"""

from typing import Any

import msgspec

from coordinator.core.model import Outcome
from coordinator.core.protocol import LeaseView


class LeaseDetailView(LeaseView, frozen=True):
    """One lease with all that Redis knows of it and of its run; times are UTC, RFC 3339."""

    why: str
    """How the holder came to it: claim, takeover or reassert; operator once it was taken back."""
    silent_seconds: float
    """Since its last renewal."""
    claimable_in_seconds: float
    """Until others may claim it without a release; negative when they may."""
    closing: bool
    """The holder has said that its training is ending."""
    handoff_to: str | None
    """The node for which it is kept."""
    handoff_seconds: float
    """How long it is kept for that node; 0 when it is not."""
    program: str
    args: Any
    """As the W&B server gave them."""
    attempts: int
    """Stays that ended under a lease, on all nodes."""
    outcomes: dict[str, int]
    """The same by outcome, those that occurred."""
    last_outcome: Outcome | None
    last_outcome_at: str | None
    last_outcome_node: str | None
    drops: int
    """Claims for the run that were given up because somebody held it."""
    last_drop: str | None
    """race or handoff_timeout."""
    last_drop_at: str | None
    last_drop_node: str | None
    rescues: int
    """How often it was queued to run again without the W&B server."""
    quarantined: str | None = None
    """Why no node takes the run up any more; None when they do."""


class NodeView(msgspec.Struct, frozen=True):
    """One node as the others see it; what it says of itself is as old as its last renewal."""

    node: str
    alive: bool
    """False once it has been silent for longer than two renewals and a time-out."""
    silent_seconds: float
    last_seen: str
    """UTC, by the clock of Redis."""
    sweep: str
    version: str | None
    state: str | None
    """A word of `NodeState`; of a silent node the last that it said."""
    slots: int | None
    """As many as are desired."""
    busy: int | None
    """Slots with a run."""
    pid: int | None
    """Of the daemon, on its own machine."""
    leases_held: int
    """Leases in its name that stand, whether or not it is alive."""
