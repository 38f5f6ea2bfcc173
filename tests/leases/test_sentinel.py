"""Leases behind real Sentinels: a primary, a replica and a fail-over in mid-run."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases.addresses import read_address
from tests.leases.nodes import NO_RACE, Node, claim, node, resume, until
from tests.support.redis import FaultProxy, free_port
from tests.support.topology import Guarded, ask, guarded_redis, sentinel_url

pytestmark = pytest.mark.anyio

SLOW = replace(
    NO_RACE,
    ttl_seconds=20.0,
    renew_seconds=0.5,
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
    async with AsyncExitStack() as stack:
        events = stack.enter_context(capture_logs())
        sight = await stack.enter_async_context(FaultProxy(guarded.sentinels[0].socket).serve())

        async def start(name: str, url: str) -> Node:
            return await stack.enter_async_context(node(url, sweep, tmp_path, name, SLOW))

        a = await start("node-a", sentinel_url(sight.port))
        kept = await a.held(claim("r-kept"))
        assert await ask(guarded.primary, "WAIT", 1, 10_000) == 1
        guarded.link.black_hole = sight.black_hole = True
        lost = await a.held(claim("r-lost"))
        await guarded.fail_over()
        b, c = [await start(name, guarded.url) for name in ("node-b", "node-c")]
        extra = await b.held(claim("r-lost"))
        assert extra.fence > lost.fence
        with anyio.move_on_after(0.5):
            await c.keeper.acquire(resume("r-lost"))
        assert c.keeper.leases_held == 0, "one extra holder, not two"
        assert a.keeper.health().state == "ok", "the old primary still answers it"
        sight.black_hole = False
        began = anyio.current_time()
        await until(lambda: a.fenced == [lost])
        told = anyio.current_time() - began
        await a.keeper.forget(lost.token)
        assert a.keeper.held() == [kept], "its record had reached the replica"
        assert (a.stopped, b.fenced) == ([], [])
        await b.keeper.release(extra.token, Outcome.PREEMPTED)
        after = await a.held(resume("r-lost"))
        assert after.fence > extra.fence
    assert told < 1.1 * SLOW.renew_seconds + SLOW.stop_budget_seconds + 1.0, "1 s for the machine"
    assert "redis_changed" in {event["event"] for event in events}


async def test_without_a_sentinel_that_answers_it_waits_and_shows_no_password(
    sweep: SweepPath, tmp_path: Path
) -> None:
    url = f"{sentinel_url(free_port())}?sentinel_password=s3cret"
    with capture_logs() as events:
        async with node(url, sweep, tmp_path, started=False) as a:
            await until(lambda: "no Sentinel answers" in a.keeper.health().detail)
    assert events
    assert "s3cret" not in str(events)


def test_the_parts_of_a_sentinel_address_go_to_the_sentinels_or_to_the_data_servers() -> None:
    address = read_address(
        "rediss+sentinel://u:p%40w@h:1,[::1]:2,i/prime/3?sentinel_password=q&ssl_ca_certs=/ca"
    )
    assert (address.hosts, address.service) == ((("h", 1), ("::1", 2), ("i", 26379)), "prime")
    assert {"username": "u", "password": "p@w", "db": 3}.items() <= address.options.items()
    assert "sentinel_password" not in address.options
    secure = {"ssl": True, "ssl_ca_certs": "/ca", "ssl_check_hostname": True}
    assert address.sentinel_options == {"password": "q", **secure}
