"""The end of a stay, told once, however often a daemon is killed while it tells."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.supervisor.node import node

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
