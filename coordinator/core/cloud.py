"""Notices of clouds about the end of machines: documents to notices, notices to reactions.

Owns the vendors' documents and what their terms mean for trainings. Sources, all read in
November 2026:

* EC2 User Guide, "Spot Instance interruption notices" and "EC2 instance rebalance recommendations";
* Compute Engine, "Create and use Spot VMs" (preempted, 30 s) and "Query the metadata server for
  maintenance event notices";
* Azure Metadata Service, "Scheduled Events for Linux VMs".
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import msgspec


class Cloud(enum.StrEnum):
    """Clouds whose metadata service we can watch."""

    EC2 = "ec2"
    GCE = "gce"
    AZURE = "azure"


class Weight(enum.Enum):
    """What a notice announces."""

    END = "end"
    """The machine or its memory is gone at the deadline."""
    RISK = "risk"
    """It may be gone some time soon."""
    PAUSE = "pause"
    """It is frozen for seconds; processes survive."""


class Response(enum.StrEnum):
    """What the node does about a notice."""

    PREEMPT = "preempt"
    DRAIN = "drain"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class CloudNotice:
    """One thing that a cloud has announced."""

    cloud: Cloud
    word: str
    """The vendor's term: "terminate", "rebalance", "Preempt"."""
    weight: Weight
    identity: str
    """Identifies an announcement, however often it is read."""
    deadline: datetime | None = None
    left_seconds: float | None = None
    """Time to the deadline, by the vendor's clock; None: unknown."""


RESERVE_SECONDS = 5.0
"""Reserved before a deadline for SIGKILL, the end of process trees and releasing leases."""
LEAST_GRACE_SECONDS = 2.0
"""Minimum grace: a signal followed at once by SIGKILL would be useless."""
GCE_PREEMPTION_SECONDS = 30.0
"""Compute Engine: from the notice to the end of a Spot VM."""


def respond(notice: CloudNotice, on_risk: Response) -> Response:
    """The reaction to `notice`; `on_risk` is the user's choice for uncertain notices."""
    match notice.weight:
        case Weight.END:
            return Response.PREEMPT
        case Weight.RISK:
            return on_risk
        case Weight.PAUSE:
            return Response.IGNORE


def grace(notice: CloudNotice, configured_seconds: float) -> float:
    """The grace of trainings: as configured, or less if the deadline is closer."""
    if notice.left_seconds is None:
        return configured_seconds
    return min(configured_seconds, max(LEAST_GRACE_SECONDS, notice.left_seconds - RESERVE_SECONDS))


# --- EC2 --------------------------------------------------------------------------------------
class _InstanceAction(msgspec.Struct):
    action: str
    """hibernate, stop or terminate."""
    time: datetime


class _Rebalance(msgspec.Struct, rename="camel"):
    notice_time: str


def ec2_instance_action(document: bytes, now: datetime) -> CloudNotice:
    """`spot/instance-action`; raises ValueError for any other document."""
    said = msgspec.json.decode(document, type=_InstanceAction)
    at = said.time if said.time.tzinfo else said.time.replace(tzinfo=UTC)
    return CloudNotice(Cloud.EC2, said.action, Weight.END, f"{said.action} {at.isoformat()}",
                       at, (at - now).total_seconds())  # fmt: skip


def ec2_rebalance(document: bytes) -> CloudNotice:
    """`events/recommendations/rebalance`; raises ValueError for any other document."""
    said = msgspec.json.decode(document, type=_Rebalance)
    return CloudNotice(Cloud.EC2, "rebalance", Weight.RISK, f"rebalance {said.notice_time}")


# --- GCE --------------------------------------------------------------------------------------
_MAINTENANCE = {
    "MIGRATE_ON_HOST_MAINTENANCE": Weight.PAUSE,
    # Machines with GPUs cannot be moved; they get a notice an hour before, without the time.
    "TERMINATE_ON_HOST_MAINTENANCE": Weight.RISK,
}


def gce_preempted(value: str, now: datetime) -> CloudNotice | None:
    """`instance/preempted`: TRUE or FALSE."""
    if value.strip().upper() != "TRUE":
        return None
    deadline = now + timedelta(seconds=GCE_PREEMPTION_SECONDS)
    return CloudNotice(Cloud.GCE, "preempted", Weight.END, "preempted", deadline,
                       GCE_PREEMPTION_SECONDS)  # fmt: skip


def gce_maintenance(value: str, now: datetime) -> CloudNotice | None:
    """`instance/maintenance-event`: NONE or what will happen, shown while it lasts."""
    word = value.strip()
    if word not in _MAINTENANCE:
        return None
    return CloudNotice(Cloud.GCE, word, _MAINTENANCE[word], f"{word} {now.isoformat()}")


# --- Azure ------------------------------------------------------------------------------------
class _Event(msgspec.Struct, rename="pascal"):
    event_id: str
    event_type: str
    resources: list[str] = []
    not_before: str = ""
    """RFC 1123; empty once the event has started."""


class _Events(msgspec.Struct, rename="pascal"):
    events: list[_Event] = []


_AZURE = {
    "Preempt": Weight.END,
    "Terminate": Weight.END,
    "Reboot": Weight.END,
    "Redeploy": Weight.END,
    "Freeze": Weight.PAUSE,
}


def azure_events(document: bytes, machine: str, now: datetime) -> Sequence[CloudNotice]:
    """The scheduled events of `machine`: each machine gets the events of its whole set.

    Raises ValueError for any other document.
    """
    said = msgspec.json.decode(document, type=_Events)
    return [_azure_notice(event, now) for event in said.events if machine in event.resources]


def _azure_notice(event: _Event, now: datetime) -> CloudNotice:
    weight = _AZURE.get(event.event_type, Weight.RISK)
    if not event.not_before:
        return CloudNotice(Cloud.AZURE, event.event_type, weight, event.event_id)
    at = parsedate_to_datetime(event.not_before)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return CloudNotice(Cloud.AZURE, event.event_type, weight, event.event_id, at,
                       (at - now).total_seconds())  # fmt: skip


def azure_start_request(identity: str) -> bytes:
    """The document that lets an event start before its time."""
    return msgspec.json.encode({"StartRequests": [{"EventId": identity}]})
