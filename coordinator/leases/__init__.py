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
from coordinator.leases.answers import StealStatus, Stolen
from coordinator.leases.api import Leases, OnFenced, OnStop
from coordinator.leases.connection import redacted_url
from coordinator.leases.journal import Journal, JournalEntry
from coordinator.leases.keeper import LeaseKeeper
from coordinator.leases.off import NoLeases

__all__ = [
    "Claim",
    "DropReason",
    "Dropped",
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
    "OnFenced",
    "OnStop",
    "StealStatus",
    "Stolen",
    "redacted_url",
]
