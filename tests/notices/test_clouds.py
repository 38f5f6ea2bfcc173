"""Watchers against services that answer, refuse and wait as the vendors document."""

import socket
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.config.model import Preemption
from coordinator.core.cloud import Cloud, CloudNotice, Weight
from coordinator.notices import azure, ec2, metadata, watch_clouds
from coordinator.notices.clouds import LINK_LOCAL, endpoint
from tests.notices.services import Azure, Ec2, Gce, Nothing, Service, served

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundredths for seconds between two requests."""
    for module in (ec2, azure):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(metadata, "RETRY_SECONDS", 0.02)


@dataclass
class Watched:
    """What was told, and a gate at which the handler of notices waits."""

    notices: list[CloudNotice] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)

    async def heed(self, notice: CloudNotice) -> None:
        self.notices.append(notice)
        await self.done.wait()

    async def first(self, count: int) -> list[CloudNotice]:
        await until(lambda: len(self.notices) >= count)
        return self.notices


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - another task's list grows
            await anyio.sleep(0.005)


@asynccontextmanager
async def watched(
    cloud: Cloud, service: Service, *, acknowledge: bool = False, url: str = ""
) -> AsyncIterator[Watched]:
    settings = Preemption(
        notices=[cloud], endpoints={cloud.value: url or service.url}, acknowledge=acknowledge
    )
    found = Watched()
    async with anyio.create_task_group() as group:
        group.start_soon(watch_clouds, settings, {}, found.heed)
        yield found
        group.cancel_scope.cancel()


def events(logs: list[MutableMapping[str, Any]]) -> list[str]:
    return [entry["event"] for entry in logs]


# --- EC2 ------------------------------------------------------------------------------------------
async def test_a_spot_notice_is_reported_once_with_its_deadline() -> None:
    service = Ec2()
    async with served(service), watched(Cloud.EC2, service) as found:
        await until(lambda: len(service.requests) > 8)
        assert not found.notices, "404: nothing is announced"
        at = service.interrupt("terminate", 120)
        (notice,) = await found.first(1)
        seen = len(service.requests)
        await until(lambda: len(service.requests) > seen + 8)
        assert found.notices == [notice]
    assert (notice.word, notice.deadline) == ("terminate", at)
    assert notice.left_seconds == pytest.approx(120, abs=5)


async def test_a_deadline_is_measured_by_the_clock_of_the_service() -> None:
    service = Ec2(clock_offset_seconds=-3600)
    async with served(service), watched(Cloud.EC2, service) as found:
        service.interrupt("stop", 120)
        (notice,) = await found.first(1)
    assert notice.left_seconds == pytest.approx(120, abs=5)


async def test_a_rebalance_recommendation_and_an_interruption_are_two_notices() -> None:
    service = Ec2()
    async with served(service), watched(Cloud.EC2, service) as found:
        service.recommend()
        await found.first(1)
        service.interrupt("terminate", 120)
        notices = await found.first(2)
    assert [n.weight for n in notices] == [Weight.RISK, Weight.END]


async def test_a_token_is_used_again_until_the_service_forgets_it() -> None:
    service = Ec2()
    token = "PUT /latest/api/token"
    async with served(service), watched(Cloud.EC2, service) as found:
        await until(lambda: len(service.requests) > 10)
        assert service.requests.count(token) == 1
        service.tokens.clear()
        service.interrupt("terminate", 120)
        await found.first(1)
        assert service.requests.count(token) == 2


# --- GCE ------------------------------------------------------------------------------------------
async def test_a_gce_preemption_arrives_on_the_blocking_request() -> None:
    service = Gce()
    async with served(service), watched(Cloud.GCE, service) as found:
        await until(lambda: len(service.requests) == 4)
        await anyio.sleep(0.5)  # long enough for many requests, were they not waiting
        assert len(service.requests) == 4
        service.set("preempted", "TRUE")
        (notice,) = await found.first(1)
    assert (notice.word, notice.left_seconds) == ("preempted", 30.0)


async def test_a_gce_machine_that_is_already_preempted_gets_the_notice_at_once() -> None:
    service = Gce()
    service.values["preempted"] = "TRUE"
    async with served(service), watched(Cloud.GCE, service) as found:
        await found.first(1)


async def test_each_gce_maintenance_is_a_notice_of_its_own() -> None:
    service = Gce()
    async with served(service), watched(Cloud.GCE, service) as found:
        service.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        await found.first(1)
        service.set("maintenance-event", "NONE")
        service.clock_offset_seconds = 3600
        await until(lambda: len(service.requests) >= 5)
        service.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        notices = await found.first(2)
    assert [n.weight for n in notices] == [Weight.PAUSE, Weight.RISK]


# --- Azure ----------------------------------------------------------------------------------------
async def test_azure_events_of_other_machines_are_passed_over() -> None:
    service = Azure()
    service.schedule("Preempt", 30, "vmss_0", "vmss_2")
    mine = service.schedule("Redeploy", 600, "vmss_0", "vmss_1")
    async with served(service), watched(Cloud.AZURE, service) as found:
        (notice,) = await found.first(1)
    assert (notice.identity, notice.word) == (mine, "Redeploy")
    assert notice.left_seconds == pytest.approx(600, abs=5)


async def test_azure_gets_the_acknowledgement_when_the_node_is_empty_and_not_before() -> None:
    service = Azure()
    async with served(service), watched(Cloud.AZURE, service, acknowledge=True) as found:
        event = service.schedule("Preempt", 30)
        await found.first(1)
        seen = len(service.requests)
        await until(lambda: len(service.requests) > seen + 5)
        assert not service.started
        found.done.set()
        await until(lambda: service.started == [event])


@pytest.mark.parametrize(("acknowledge", "kind"), [(True, "Freeze"), (False, "Reboot")])
async def test_azure_gets_no_acknowledgement_of_a_freeze_or_without_configuration(
    acknowledge: bool, kind: str
) -> None:
    service = Azure()
    service.schedule(kind, 30)
    async with served(service), watched(Cloud.AZURE, service, acknowledge=acknowledge) as found:
        found.done.set()
        await found.first(1)
        seen = len(service.requests)
        await until(lambda: len(service.requests) > seen + 5)
    assert not [line for line in service.requests if line.startswith("POST")]


async def test_a_refused_acknowledgement_is_reported_and_watching_continues() -> None:
    service = Azure(refuses_starts=True)
    with capture_logs() as logs:
        async with served(service), watched(Cloud.AZURE, service, acknowledge=True) as found:
            found.done.set()
            service.schedule("Reboot", 600)
            await until(lambda: "notice_source_failed" in events(logs))
            service.schedule("Preempt", 30)
            await found.first(2)


# --- trouble --------------------------------------------------------------------------------------
async def test_a_service_out_of_reach_is_reported_once_and_once_when_it_is_back() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    service = Ec2()
    with capture_logs() as logs:
        async with watched(Cloud.EC2, service, url=f"http://127.0.0.1:{port}") as found:
            await until(lambda: bool(logs))
            await anyio.sleep(0.2)  # some ten more failures
            async with served(service, port):
                service.interrupt("terminate", 60)
                await found.first(1)
    assert events(logs) == ["notice_source_failed", "notice_source_reached"]
    assert logs[0]["reason"] == "Connection refused"


@pytest.mark.parametrize(
    ("cloud", "words"),
    [(Cloud.EC2, "is this EC2?"), (Cloud.GCE, "is this Compute Engine?"),
     (Cloud.AZURE, "is this Azure?")],
)  # fmt: skip
async def test_a_machine_of_another_cloud_is_called_so(cloud: Cloud, words: str) -> None:
    service = Nothing()
    with capture_logs() as logs:
        async with served(service), watched(cloud, service):
            await until(lambda: bool(logs))
    assert events(logs) == ["notice_source_failed"]
    assert words in logs[0]["reason"]


async def test_one_value_that_fails_among_others_is_reported_once() -> None:
    service = Gce(values={"maintenance-event": "NONE"})
    with capture_logs() as logs:
        async with served(service), watched(Cloud.GCE, service) as found:
            preempted = "GET /computeMetadata/v1/instance/preempted"
            await until(lambda: service.requests.count(preempted) > 5)
            service.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
            await found.first(1)
    assert events(logs).count("notice_source_failed") == 1


async def test_an_invalid_document_is_reported_and_watching_continues() -> None:
    service = Ec2(documents={"spot/instance-action": ["what"]})
    with capture_logs() as logs:
        async with served(service), watched(Cloud.EC2, service) as found:
            await until(lambda: "notice_source_failed" in events(logs))
            service.interrupt("terminate", 60)
            await found.first(1)


# --- who is asked ---------------------------------------------------------------------------------
async def test_no_request_is_sent_unless_a_cloud_is_configured() -> None:
    service = Ec2()
    async with served(service):
        settings = Preemption(endpoints={"ec2": service.url})
        with anyio.fail_after(5):
            await watch_clouds(settings, {}, Watched().heed)
    assert not service.requests


def test_an_endpoint_is_the_configured_one_then_the_vendors_variable_then_the_default() -> None:
    environ = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1338",
        "GCE_METADATA_HOST": "127.0.0.1:8080",
    }
    assert endpoint(Cloud.EC2, {"ec2": "http://h"}, environ) == "http://h"
    assert endpoint(Cloud.EC2, {}, environ) == "http://127.0.0.1:1338"
    assert endpoint(Cloud.GCE, {}, environ) == "http://127.0.0.1:8080"
    assert endpoint(Cloud.EC2, {}, {}) == endpoint(Cloud.AZURE, {}, {}) == LINK_LOCAL
    assert endpoint(Cloud.GCE, {}, {}) == "http://metadata.google.internal"
