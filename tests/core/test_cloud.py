"""The vendors' documents, as their pages show them, and what the node does about each."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.cloud import (
    LEAST_GRACE_SECONDS,
    RESERVE_SECONDS,
    Cloud,
    CloudNotice,
    Response,
    Weight,
    azure_events,
    azure_start_request,
    ec2_instance_action,
    ec2_rebalance,
    gce_maintenance,
    gce_preempted,
    grace,
    respond,
)

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


# --- EC2 ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_an_ec2_interruption_has_its_action_and_its_time(action: str) -> None:
    document = f'{{"action": "{action}", "time": "2030-01-02T03:06:05Z"}}'.encode()
    notice = ec2_instance_action(document, NOW)
    assert (notice.word, notice.weight, notice.left_seconds) == (action, Weight.END, 120.0)
    assert notice.deadline == NOW + timedelta(minutes=2)


def test_an_ec2_rebalance_recommendation_is_a_risk_without_a_deadline() -> None:
    notice = ec2_rebalance(b'{"noticeTime": "2030-01-02T03:04:00Z"}')
    assert (notice.word, notice.weight, notice.deadline) == ("rebalance", Weight.RISK, None)


@pytest.mark.parametrize("document", [b"", b"<html>", b"[]", b"{}", b'{"action": "x", "time": 1}'])
def test_another_document_than_of_ec2_is_a_value_error(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ec2_instance_action(document, NOW)


# --- GCE ------------------------------------------------------------------------------------------
def test_a_gce_preemption_leaves_thirty_seconds() -> None:
    notice = gce_preempted("TRUE", NOW)
    assert notice is not None
    assert (notice.weight, notice.left_seconds) == (Weight.END, 30.0)
    assert gce_preempted("FALSE", NOW) is None


def test_gce_maintenance_is_a_pause_or_a_risk() -> None:
    moved = gce_maintenance("MIGRATE_ON_HOST_MAINTENANCE", NOW)
    ended = gce_maintenance("TERMINATE_ON_HOST_MAINTENANCE", NOW)
    assert moved is not None
    assert ended is not None
    assert (moved.weight, ended.weight) == (Weight.PAUSE, Weight.RISK)
    assert gce_maintenance("NONE", NOW) is None


# --- Azure ----------------------------------------------------------------------------------------
def azure(kind: str, *machines: str, not_before: str = "Wed, 02 Jan 2030 03:14:05 GMT") -> bytes:
    """A document of "Scheduled Events for Linux VMs", with every field that it shows."""
    resources = ", ".join(f'"{machine}"' for machine in machines)
    return f"""{{"DocumentIncarnation": 2, "Events": [{{
      "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": "Scheduled",
      "EventType": "{kind}", "ResourceType": "VirtualMachine", "Resources": [{resources}],
      "NotBefore": "{not_before}", "Description": "d", "EventSource": "Platform",
      "DurationInSeconds": -1}}]}}""".encode()


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_an_azure_event_that_ends_the_machine_has_its_time(kind: str) -> None:
    (notice,) = azure_events(azure(kind, "vm-0", "vm-1"), "vm-1", NOW)
    assert (notice.word, notice.weight, notice.left_seconds) == (kind, Weight.END, 600.0)
    assert notice.identity == "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


def test_an_azure_freeze_is_a_pause_and_a_word_of_tomorrow_a_risk() -> None:
    assert azure_events(azure("Freeze", "vm"), "vm", NOW)[0].weight is Weight.PAUSE
    assert azure_events(azure("Evaporate", "vm"), "vm", NOW)[0].weight is Weight.RISK


def test_an_azure_event_of_another_machine_of_the_set_is_none_of_ours() -> None:
    assert not azure_events(azure("Preempt", "vm-0"), "vm-1", NOW)
    assert not azure_events(b'{"DocumentIncarnation": 1, "Events": []}', "vm-1", NOW)


def test_an_azure_event_that_has_started_has_no_deadline_and_is_still_the_same_event() -> None:
    (scheduled,) = azure_events(azure("Preempt", "vm"), "vm", NOW)
    (started,) = azure_events(azure("Preempt", "vm", not_before=""), "vm", NOW)
    assert started.deadline is None
    assert started.identity == scheduled.identity


def test_an_acknowledgement_names_the_event() -> None:
    assert azure_start_request("E1") == b'{"StartRequests":[{"EventId":"E1"}]}'


# --- answers --------------------------------------------------------------------------------------
def notice(weight: Weight, left_seconds: float | None = None) -> CloudNotice:
    return CloudNotice(Cloud.EC2, "word", weight, "id", None, left_seconds)


@pytest.mark.parametrize("on_risk", list(Response))
def test_only_a_risk_is_answered_as_the_user_says(on_risk: Response) -> None:
    assert respond(notice(Weight.END), on_risk) is Response.PREEMPT
    assert respond(notice(Weight.RISK), on_risk) is on_risk
    assert respond(notice(Weight.PAUSE), on_risk) is Response.IGNORE


@pytest.mark.parametrize(
    ("left", "configured", "expected"),
    [
        (None, 30, 30),
        (120, 30, 30),
        (120, 300, 120 - RESERVE_SECONDS),
        (30, 90, 30 - RESERVE_SECONDS),
        (0, 30, LEAST_GRACE_SECONDS),
        (-60, 30, LEAST_GRACE_SECONDS),
        (0, 0, 0),
    ],
)
def test_the_grace_is_the_configured_one_or_what_the_deadline_leaves(
    left: float | None, configured: float, expected: float
) -> None:
    assert grace(notice(Weight.END, left), configured) == expected


@given(st.floats(-1e4, 1e4), st.floats(0, 1e4))
def test_the_grace_is_never_longer_than_configured_nor_than_the_deadline(
    left: float, configured: float
) -> None:
    found = grace(notice(Weight.END, left), configured)
    assert 0 <= found <= configured
    assert found <= max(left, LEAST_GRACE_SECONDS)
