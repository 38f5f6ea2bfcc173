"""Who is woken by the end of a lease, and what that costs those who do not wait for it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from coordinator.core.lease import Conflict
from coordinator.core.model import Outcome, SweepPath
from coordinator.leases.connection import open_client
from coordinator.leases.keys import Keys
from coordinator.leases.wakeups import Wakeups
from tests.leases.nodes import FAST, PATIENT, Node, claim, node, resume, until
from tests.leases.virtual import Virtual
from tests.support.redis import RedisServer, redis_server

pytestmark = pytest.mark.anyio

SLOW_POLL = replace(PATIENT, renew_seconds=6.0, ttl_seconds=60.0)


@pytest.fixture
async def v(redis: RedisServer, sweep: SweepPath) -> AsyncIterator[Virtual]:
    async with redis.client() as client:
        yield await Virtual(client, sweep).settled()


async def reads(client: Redis) -> int:
    """Reads of streams that the server has begun."""
    stats = await client.info("commandstats")
    return int(stats.get("cmdstat_xread", {"calls": 0})["calls"])


async def test_only_nodes_whose_claims_wait_read_and_only_they_are_written_to(
    sweep: SweepPath, tmp_path: Path
) -> None:
    keys = Keys(sweep)
    async with (
        redis_server(tmp_path) as server,
        node(server.url, sweep, tmp_path, "a", SLOW_POLL) as a,
        node(server.url, sweep, tmp_path, "b", SLOW_POLL) as b,
        node(server.url, sweep, tmp_path, "c", SLOW_POLL) as c,
        server.client() as client,
    ):
        first = await a.held(claim("r1"))
        other = await c.held(claim("r2"))
        await c.keeper.release(other.token, Outcome.FINISHED)
        assert await reads(client) == 0, "nobody waits"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(b.held, resume("r1"))
            with anyio.fail_after(20):
                while await reads(client) == 0:  # noqa: ASYNC110 - of another process
                    await anyio.sleep(0.01)
            assert await reads(client) == 1
            await a.keeper.release(first.token, Outcome.PREEMPTED)
        assert b.keeper.leases_held == 1
        written = [await client.exists(keys.wake(name)) for name in ("a", "b", "c")]
        assert written == [0, 1, 0]
        assert 0 < await client.pttl(keys.wake("b")) <= 60_000


async def test_a_release_between_the_refusal_and_the_read_wakes_all_the_same(
    redis: RedisServer, sweep: SweepPath
) -> None:
    stream = Keys(sweep).wake("b")
    reader = open_client(redis.url, timeout_seconds=10, connections=1)
    async with redis.client() as client, anyio.create_task_group() as tasks:
        seconds, microseconds = await client.time()
        refused_ms = seconds * 1000 + microseconds // 1000
        await client.xadd(stream, {"run": "r1"})
        wakeups = Wakeups(reader, stream, FAST, lambda: refused_ms)
        with wakeups.waiter("r1") as waiter:
            waiter.rearm()
            tasks.start_soon(wakeups.run)
            with anyio.fail_after(20):
                await waiter.wait(60)
        tasks.cancel_scope.cancel()
    await reader.aclose()


async def test_the_reader_rests_when_the_last_claim_has_ceased_to_wait(
    redis: RedisServer, sweep: SweepPath
) -> None:
    stream = Keys(sweep).wake("b")
    reader = open_client(redis.url, timeout_seconds=10, connections=1)
    async with redis.client() as client, anyio.create_task_group() as tasks:
        wakeups = Wakeups(reader, stream, FAST, lambda: 0)
        tasks.start_soon(wakeups.run)
        with wakeups.waiter("r1") as waiter:
            await client.xadd(stream, {"run": "r1"})
            await waiter.wait(60)
        await until(lambda: not wakeups._wanted.is_set())
        before = await reads(client)
        await anyio.wait_all_tasks_blocked()
        assert await reads(client) == before
        tasks.cancel_scope.cancel()
    await reader.aclose()


async def test_the_list_of_those_who_wait_is_bounded_and_ends_with_the_lease(v: Virtual) -> None:
    held = await v.granted("r1")
    for number in range(50):
        for _ in range(2):  # who looks again is not noted twice
            _, answer = await v.acquire("r1", node=f"node-{number}")
            assert isinstance(answer, Conflict)
    waiters = str(await v.client.hget(v.keys.lease("r1"), "waiters"))
    assert waiters.splitlines() == [f"node-{number}" for number in range(32)]
    await v.release(held)
    assert await v.client.hget(v.keys.lease("r1"), "waiters") == ""
    assert await v.client.xlen(v.keys.wake("node-31")) == 1
    assert not await v.client.exists(v.keys.wake("node-32"))


# --- a node with a free slot ----------------------------------------------------------------------
FOREVER = 3600.0


async def test_one_idle_node_is_told_of_a_preempted_run_and_not_the_one_that_gave_it_up(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    told: list[str] = []

    async def rest(name: str, here: Node) -> None:
        await here.keeper.rest(FOREVER)
        told.append(name)

    async with (
        node(redis.url, sweep, tmp_path, "a", SLOW_POLL) as a,
        node(redis.url, sweep, tmp_path, "b", SLOW_POLL) as b,
        node(redis.url, sweep, tmp_path, "c", SLOW_POLL) as c,
        redis.client() as client,
    ):
        first, second = await a.held(claim("r1")), await a.held(claim("r2"))
        async with anyio.create_task_group() as tasks:
            for name, here in (("a", a), ("b", b), ("c", c)):
                tasks.start_soon(rest, name, here)
            with anyio.fail_after(20):
                while await client.zcard(Keys(sweep).idle) < 3:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await a.keeper.release(first.token, Outcome.PREEMPTED)
            await until(lambda: len(told) == 1)
            await a.keeper.release(second.token, Outcome.PREEMPTED)
            await until(lambda: len(told) == 2)
            tasks.cancel_scope.cancel()
    assert sorted(told) == ["b", "c"]


async def test_an_idle_node_is_not_told_of_a_run_that_nobody_hands_out_again(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(redis.url, sweep, tmp_path, "a", SLOW_POLL) as a,
        node(redis.url, sweep, tmp_path, "b", SLOW_POLL) as b,
        redis.client() as client,
    ):
        lease = await a.held(claim("r1"))
        with anyio.move_on_after(1.0) as rested:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(b.keeper.rest, FOREVER)
                while not await client.zcard(Keys(sweep).idle):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                await a.keeper.release(lease.token, Outcome.FINISHED)
        assert rested.cancelled_caught


async def test_news_count_once(redis: RedisServer, sweep: SweepPath, tmp_path: Path) -> None:
    """Or a node would ask again and again for as long as a read reaches back."""
    async with (
        node(redis.url, sweep, tmp_path, "a", SLOW_POLL) as a,
        node(redis.url, sweep, tmp_path, "b", SLOW_POLL) as b,
        redis.client() as client,
    ):
        lease = await a.held(claim("r1"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(b.keeper.rest, FOREVER)
            while not await client.zcard(Keys(sweep).idle):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            with anyio.fail_after(20):
                await a.keeper.release(lease.token, Outcome.PREEMPTED)
        with anyio.move_on_after(1.0) as rested:
            await b.keeper.rest(FOREVER)
        assert rested.cancelled_caught


async def test_a_rest_ends_in_time_and_while_redis_is_away(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        redis_server(tmp_path) as server,
        node(server.url, sweep, tmp_path, "a", SLOW_POLL) as a,
    ):
        with anyio.fail_after(20):
            await a.keeper.rest(0.05)
            await server.kill()
            await a.keeper.rest(0.05)
