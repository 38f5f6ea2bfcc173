"""A spot notice at the metadata service ends a real training in time, as its deadline says."""

import signal
from collections.abc import Callable, Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from coordinator.core.cloud import RESERVE_SECONDS
from tests.notices.services import Ec2, served
from tests.support.emulator import Emulator, wait_until
from tests.support.events import check_events
from tests.support.node import Node, sweep_config

MakeNode = Callable[..., Node]


@pytest.fixture
def ec2() -> Iterator[Ec2]:
    """EC2's metadata service on loopback."""
    service = Ec2()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(service)),
    ):
        yield service


def test_a_spot_notice_preempts_the_training_within_its_deadline(
    emulator: Emulator, make_node: MakeNode, ec2: Ec2
) -> None:
    config = sweep_config(1, seconds=300.0, on_term="save", save_seconds=0.2)
    node = make_node(
        emulator.create_sweep(config), "--slots", "1", "--redis-url", "embedded", "--until-done",
        "--set", 'preemption.notices=["ec2"]', "--set", "preemption.grace_seconds=600",
        AWS_EC2_METADATA_SERVICE_ENDPOINT=ec2.url,
    )  # fmt: skip
    node.start().wait_running(1)
    wait_until("the run logs", lambda: node.records("init"))

    deadline = ec2.interrupt("terminate", 120)

    assert node.wait() == 75, node.tail()
    (notice,) = node.events("notice_received")
    (began,) = node.events("preemption_began")
    assert (notice["source"], notice["notice"], notice["step"]) == ("ec2", "terminate", "preempt")
    assert notice["deadline"] == deadline.isoformat()
    assert 90 < began["grace_seconds"] <= 120 - RESERVE_SECONDS
    assert [record["signal"] for record in node.records("signal")] == [signal.SIGTERM]
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"preempted"}
    check_events(node.events())
    assert not node.processes()
