"""Leases: at most one holder of a run among all nodes that share a Redis (docs/leases.md)."""

from coordinator.core.lease import (
    Claim,
    Dropped,
    DropReason,
    Health,
    HolderState,
    Lease,
    LeaseSettings,
)
from coordinator.core.protocol import LeaseView
from coordinator.leases.addresses import redacted_url
from coordinator.leases.answers import OfferStatus, Rescue, StealStatus, Stolen, Waiting
from coordinator.leases.api import Leases, OnFenced, OnStop
from coordinator.leases.journal import Journal, JournalEntry
from coordinator.leases.keeper import LeaseKeeper
from coordinator.leases.off import NoLeases
from coordinator.leases.operations import Operations
from coordinator.leases.registry import Freed, FreeStatus, NodeFacts
from coordinator.leases.shared import Shared, SharedBreaker

__all__ = [
    "Claim",
    "DropReason",
    "Dropped",
    "FreeStatus",
    "Freed",
    "Health",
    "HolderState",
    "Journal",
    "JournalEntry",
    "Lease",
    "LeaseKeeper",
    "LeaseSettings",
    "LeaseView",
    "Leases",
    "NoLeases",
    "NodeFacts",
    "OfferStatus",
    "OnFenced",
    "OnStop",
    "Operations",
    "Rescue",
    "Shared",
    "SharedBreaker",
    "StealStatus",
    "Stolen",
    "Waiting",
    "redacted_url",
]
