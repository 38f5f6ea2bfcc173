"""A slow link, within the time-out, is usable, also after its connections have broken."""

from pathlib import Path

import anyio
import pytest

from coordinator.core.model import SweepPath
from tests.leases.nodes import FAST, claim, node, until
from tests.support.redis import FaultProxy, RedisServer

pytestmark = pytest.mark.anyio


async def test_a_slow_link_is_taken_up_again_after_its_connections_broke(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path) as a,
    ):
        await a.held(claim("r1"))
        proxy.delay_seconds = 0.6 * FAST.timeout_seconds
        await proxy.reset_all()
        broke = anyio.current_time()
        keeper = a.keeper

        def renewed_since() -> bool:
            return keeper.health().since_seconds < anyio.current_time() - broke - 0.1

        await until(renewed_since)
        assert a.stopped == []
    assert a.fenced == []


async def test_a_new_connection_begins_with_the_request_itself(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    seen: list[bytes] = []
    async with FaultProxy(redis.socket).serve() as proxy:
        proxy.on_request = seen.append
        async with node(proxy.url, sweep, tmp_path) as a:
            await a.held(claim("r1"))
    assert seen
    assert not [data for data in seen if b"CLIENT" in data or b"HELLO" in data]
