"""What a node does about a notice of its cloud: the signal, the grace, what it takes afterwards."""

import signal
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.core.cloud import RESERVE_SECONDS, Cloud, CloudNotice, Response, Weight
from coordinator.core.model import NodeState
from coordinator.supervisor.cloud import CloudNotices
from coordinator.supervisor.pool import PREEMPTED_EXIT_CODE
from tests.supervisor.node import node

pytestmark = pytest.mark.anyio

DEADLINE = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
END = CloudNotice(Cloud.EC2, "terminate", Weight.END, "1", DEADLINE, 120.0)
RISK = CloudNotice(Cloud.EC2, "rebalance", Weight.RISK, "2")
PAUSE = CloudNotice(Cloud.AZURE, "Freeze", Weight.PAUSE, "3", DEADLINE, 900.0)


async def test_the_end_of_the_machine_preempts_by_its_deadline_once(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        cloud = CloudNotices(ours.pool, Response.DRAIN)
        async with anyio.create_task_group() as group:
            group.start_soon(cloud.heed, END)
            group.start_soon(cloud.heed, END)
            told = {"do": "signal", "signal": signal.SIGUSR2, "once": True,
                    "preempt": True}  # fmt: skip
            assert await shim.told() == told
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert ours.pool.state is NodeState.DRAINING
        assert shim.training.attempt.kill_at is not None
        left = shim.training.attempt.kill_at - monotonic()
        assert left == pytest.approx(120 - RESERVE_SECONDS, abs=10)


async def test_it_is_done_when_the_last_training_is_gone(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        await ours.train(0, "run-a")
        with anyio.move_on_after(0.1) as waiting:
            await CloudNotices(ours.pool, Response.DRAIN).heed(END)
        assert waiting.cancelled_caught
        ours.pool.slots.clear()
        with anyio.fail_after(5):
            await CloudNotices(ours.pool, Response.DRAIN).heed(END)


@pytest.mark.parametrize(
    ("notice", "on_risk", "state", "preempted"),
    [
        (RISK, Response.DRAIN, NodeState.DRAINING, False),
        (RISK, Response.IGNORE, NodeState.RUNNING, False),
        (PAUSE, Response.PREEMPT, NodeState.RUNNING, False),
    ],
)
async def test_a_risk_is_answered_as_configured_and_a_pause_not_at_all(
    notice: CloudNotice, on_risk: Response, state: NodeState, preempted: bool, tmp_path: Path
) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        await CloudNotices(ours.pool, on_risk).heed(notice)
        assert ours.pool.state is state
        assert shim.training.attempt.preempted is preempted


async def test_a_batch_job_on_a_machine_at_risk_ends_after_its_last_training(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as ours:
        ours.pool.settings = replace(ours.pool.settings, until_done=True)
        await ours.train(0, "run-a")
        await CloudNotices(ours.pool, Response.DRAIN).heed(RISK)
        assert ours.pool._finished() is None
        ours.pool.slots.clear()
        assert ours.pool._finished() == PREEMPTED_EXIT_CODE


async def test_the_event_has_the_clouds_word_and_the_deadline(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        with capture_logs() as logs:
            await CloudNotices(ours.pool, Response.DRAIN).heed(PAUSE)
    assert logs == [{
        "event": "notice_received", "log_level": "warning", "source": "azure", "notice": "Freeze",
        "deadline": "2030-01-02T03:04:05+00:00", "step": "ignore",
    }]  # fmt: skip
