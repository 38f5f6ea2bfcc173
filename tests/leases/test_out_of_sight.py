"""Redis out of sight: black holes, no Redis at the start or at the end, and a paused daemon."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import HolderState
from coordinator.leases.keys import Keys
from tests.leases.nodes import FAST, PATIENT, announced, claim, node, resume, until
from tests.support.redis import FaultProxy, RedisServer, redis_server

pytestmark = pytest.mark.anyio


async def test_a_black_hole_shorter_than_the_ttl_changes_nothing(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with FaultProxy(redis.socket).serve() as proxy, node(proxy.url, sweep, tmp_path) as a:
        lease = await a.held(claim("r1"))
        proxy.black_hole = True
        await until(lambda: a.keeper.health().state == "uncertain")
        assert not a.keeper.admits(None)
        proxy.black_hole = False
        await until(lambda: a.keeper.health().state == "ok")
        assert a.keeper.admits(None)
        assert a.keeper.held() == [lease]
        assert (a.fenced, a.stopped) == ([], [])


async def test_a_black_hole_longer_than_ttl_and_grace_ends_in_a_late_renewal(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path) as a,
        redis.client() as client,
    ):
        lease = await a.held(claim("r1"))
        proxy.black_hole = True
        await until(lambda: a.keeper.health().state == "lost")
        await anyio.sleep(FAST.grace_seconds)
        proxy.black_hole = False
        await until(lambda: a.keeper.health().state == "ok")
        record = await client.hgetall(Keys(sweep).lease("r1"))
        assert record["fence"] == str(lease.fence)
        assert a.keeper.held() == [lease]
        assert (a.fenced, a.stopped) == ([], [])


async def test_a_holder_that_lost_its_lease_is_told_once_and_the_other_keeps_it(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path, "node-a", PATIENT) as a,
        node(redis.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        lease = await a.held(claim("r1"))
        proxy.black_hole = True
        taken = await b.held(resume("r1"))
        assert taken.fence > lease.fence
        assert (a.fenced, a.stopped) == ([], []), "nobody knows of another owner yet"
        proxy.black_hole = False
        await until(lambda: a.fenced != [])
        assert not a.keeper.stands(lease.token)
        for _ in range(3):
            await a.keeper._renewer.round()
        assert a.fenced == [lease]
        await a.keeper.release(lease.token, Outcome.FENCED)
        await until(lambda: a.journalled() == set())
        (view,) = await b.keeper.list_leases()
        assert (view.owner, view.fence, view.state) == ("node-b", taken.fence, "held")
        assert b.fenced == []


async def test_redis_down_at_start_is_waited_for_and_told_once(
    sweep: SweepPath, tmp_path: Path
) -> None:
    with capture_logs() as events:
        async with (
            redis_server(tmp_path, start=False) as server,
            node(server.url, sweep, tmp_path, started=False) as a,
        ):
            await until(lambda: any(e["event"] == "redis_unreachable" for e in events))
            assert not a.keeper.admits(None)
            assert a.keeper.health().state != "ok"
            await anyio.sleep(FAST.renew_seconds)
            await server.start()
            await until(lambda: a.keeper.health().state == "ok")
            await a.held(claim("r1"))
    told = [event for event in events if event["event"] == "redis_unreachable"]
    assert len(told) == 1
    assert "check that Redis runs" in told[0]["advice"]


async def test_waiting_for_redis_ends_promptly_when_cancelled(
    sweep: SweepPath, tmp_path: Path
) -> None:
    url = f"unix://{tmp_path}/none.sock"
    began = anyio.current_time()
    async with node(url, sweep, tmp_path, started=False) as a:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.keeper.acquire, claim("r1"))
            await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        assert a.journalled() == set()
    assert anyio.current_time() - began < 5.0


async def test_close_is_bounded_in_a_black_hole_and_the_journal_keeps_the_rest(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with FaultProxy(redis.socket).serve() as proxy:
        async with node(proxy.url, sweep, tmp_path) as a:
            lease = await a.held(claim("r1"))
            proxy.black_hole = True
            began = anyio.current_time()
            await a.keeper.release(lease.token, Outcome.PREEMPTED)
            await a.keeper.close(0.3)
            assert anyio.current_time() - began < 5.0
            assert a.journalled() == {lease.token}
        proxy.black_hole = False
        async with node(proxy.url, sweep, tmp_path) as a, redis.client() as client:
            assert a.journalled() == set(), "settled before it says that it is started"
            entry = await client.hgetall(Keys(sweep).run("r1"))
            assert entry["outcome"] == "preempted"


async def test_strict_mode_stops_in_time_and_the_other_mode_does_not(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    strict = replace(PATIENT, on_lease_loss="strict")
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path, "node-a", strict) as a,
        node(proxy.url, sweep, tmp_path, "node-c", PATIENT) as c,
        node(redis.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        lease = await a.held(claim("r1"))
        await c.held(claim("r2"))
        proxy.black_hole = True
        taken: list[float] = []

        async def claimant() -> None:
            await b.held(resume("r1"))
            taken.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claimant)
            await until(lambda: a.stopped != [])
            stopped = anyio.current_time()
        assert a.stopped == [(lease, HolderState.SURRENDERED)]
        assert taken[0] - stopped > strict.stop_budget_seconds
        assert (c.stopped, c.fenced) == ([], [])


async def test_a_daemon_that_was_paused_renews_first_and_acts_on_the_answer(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    """The loop stands still for longer than TTL + grace; SIGSTOP does the same to the process."""
    async with (
        node(redis.url, sweep, tmp_path, "node-a", PATIENT) as a,
        redis.client() as client,
    ):
        lease = await a.held(claim("r1"))
        stand_still(PATIENT.ttl_seconds + PATIENT.grace_seconds)
        assert not a.keeper.admits(None), "not before a renewal was acknowledged"
        await until(lambda: a.keeper.health().state == "ok")
        assert a.keeper.held() == [lease]
        assert (a.fenced, a.stopped) == ([], [])
        assert await announced(client, sweep) == ["acquired"]


def stand_still(seconds: float) -> None:
    """Block the loop, on purpose."""
    import time

    end = time.clock_gettime(time.CLOCK_BOOTTIME) + seconds
    while time.clock_gettime(time.CLOCK_BOOTTIME) < end:
        pass
