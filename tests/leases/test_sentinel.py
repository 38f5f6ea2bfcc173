"""Leases behind real Sentinels: a primary, a replica and a fail-over in mid-run."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.core.model import Outcome, SweepPath
from tests.leases.nodes import NO_RACE, claim, node, resume, until
from tests.support.redis import FaultProxy
from tests.support.topology import Guarded, ask, guarded_redis, sentinel_url

pytestmark = pytest.mark.anyio

SLOW = replace(
    NO_RACE,
    ttl_seconds=20.0,
    renew_seconds=1.0,
    grace_seconds=5.0,
    stop_budget_seconds=1.0,
    handoff_seconds=60.0,
    timeout_seconds=2.0,
)
"""No lease ends by itself in these tests."""


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_redis(tmp_path) as found:
        yield found


async def test_a_fail_over_that_loses_a_write_makes_one_extra_holder_that_stops_soon(
    guarded: Guarded, sweep: SweepPath, tmp_path: Path
) -> None:
    """At most one extra holder; the old one stops within a renewal + stop budget; fences grow.

    The old holder does not hear of the fail-over at first, else it re-asserts before the claim.
    """
    with capture_logs() as events:
        async with (
            FaultProxy(guarded.sentinels[0].socket).serve() as sight,
            node(sentinel_url(sight.port), sweep, tmp_path, "node-a", SLOW) as a,
            node(guarded.url, sweep, tmp_path, "node-b", SLOW) as b,
            node(guarded.url, sweep, tmp_path, "node-c", SLOW) as c,
        ):
            kept = await a.held(claim("r-kept"))
            assert await ask(guarded.primary, "WAIT", 1, 10_000) == 1
            guarded.link.black_hole = sight.black_hole = True
            lost = await a.held(claim("r-lost"))
            await guarded.fail_over()
            extra = await b.held(claim("r-lost"))
            assert a.keeper.health().state == "ok", "the old primary still answers it"
            sight.black_hole = False
            began = anyio.current_time()
            assert extra.fence > lost.fence
            with anyio.move_on_after(0.5):
                await c.keeper.acquire(resume("r-lost"))
            assert c.keeper.leases_held == 0, "one extra holder, not two"
            await until(lambda: a.fenced == [lost])
            told = anyio.current_time() - began
            await a.keeper.forget(lost.token)
            await until(lambda: a.keeper.health().state == "ok")
            assert a.keeper.held() == [kept], "its record had reached the replica"
            assert (a.stopped, b.fenced) == ([], [])
            await b.keeper.release(extra.token, Outcome.PREEMPTED)
            after = await a.held(resume("r-lost"))
            assert after.fence > extra.fence
    assert told < 1.1 * SLOW.renew_seconds + SLOW.stop_budget_seconds + SLOW.timeout_seconds
    assert "redis_changed" in {event["event"] for event in events}
