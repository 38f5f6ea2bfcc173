"""The end of a stay, told once, however often a daemon is killed while it tells."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.core.model import CommandKind, Outcome
from tests.supervisor.node import node
from tests.supervisor.stage import command

pytestmark = pytest.mark.anyio


async def test_an_end_that_the_last_daemon_had_put_on_record_is_not_put_there_again(
    tmp_path: Path,
) -> None:
    """Its stay was still on disk, since the daemon was killed before it could remove that."""
    async with node(tmp_path) as here:
        training = (await here.train(0, "r1")).training
        with capture_logs() as events:
            await here.pool.endings._record(training)
            await here.pool.endings._record(training)

    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 1
    assert [event["event"] for event in events].count("run_ended") == 1


@pytest.mark.parametrize("handed_out", [True, False])
async def test_a_run_that_the_server_hands_out_again_at_once_was_preempted_before_it_has_a_lease(
    handed_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shown(_run_id: str) -> tuple[bool, str]:
        return True, "RUNNING"

    async with node(tmp_path) as here:
        endings, training = here.pool.endings, (await here.train(0, "r1")).training
        monkeypatch.setattr(endings, "_ask", shown)
        training.attempt = replace(training.attempt, pid=1, status=143 << 8, preempted=True)
        async with anyio.create_task_group() as group:
            group.start_soon(endings._record, training)
            await anyio.sleep(0.3)  # it has asked the server and Redis by now
            if handed_out:
                await here.pool.services.claims.put_back(command("r1", CommandKind.RESUME))

        (view,) = endings._history.newest([], 0)
        assert view.outcome is (Outcome.PREEMPTED if handed_out else Outcome.INTERRUPTED)
