"""An exchange that runs into its deadline must not cost a connection for ever.

anyio cancels again at each await, so a call of redis-py that is cancelled by `fail_after` may not
get to give its connection back; a few of those and the node never sees Redis again.
"""

from pathlib import Path

import anyio
import pytest

from coordinator.core.model import SweepPath
from coordinator.leases import Lease
from coordinator.leases.store import TROUBLE
from tests.leases.nodes import FAST, claim, node
from tests.support.redis import FaultProxy, RedisServer

pytestmark = pytest.mark.anyio


async def test_exchanges_that_time_out_leave_the_pool_whole(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path) as a,
    ):
        store, pool = a.keeper._store, a.keeper._client.connection_pool

        async def ask(number: int) -> None:
            lease = Lease(f"r{number}", claim("r").kind, f"t{number}", 1, 0)
            try:
                await store.renew_many([lease], 1)
            except TROUBLE:
                pass

        for late in (0.7, 0.95, 1.0, 1.05, 1.3):
            proxy.delay_seconds = late * FAST.timeout_seconds
            async with anyio.create_task_group() as tasks:
                for number in range(24):
                    tasks.start_soon(ask, number)
        proxy.delay_seconds = 0.0
        with anyio.fail_after(20):
            while pool._in_use_connections:  # noqa: ASYNC110 - only a renewal under way
                await anyio.sleep(0.01)
        lease = await a.held(claim("after"))
        assert lease.run_id == "after"
