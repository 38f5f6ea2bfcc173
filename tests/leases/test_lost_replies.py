"""Replies that are cut or vanish, connections that break: what is granted and released, once."""

import re
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import Dropped, Lease
from coordinator.leases.keys import Keys
from tests.leases.nodes import FAST, PATIENT, announced, claim, node, resume, until
from tests.support.redis import FaultProxy, RedisServer, redis_server

pytestmark = pytest.mark.anyio

TOKEN = re.compile(rb"\$32\r\n([0-9a-f]{32})\r\n")


async def test_a_reply_that_is_cut_on_acquire_makes_one_grant(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path) as a,
        redis.client() as client,
    ):
        for fault in ("cut_replies", "drop_replies"):
            proxy.match, proxy.hits = b"train.py", 0
            setattr(proxy, fault, 2)
            run_id = f"r-{fault}"
            lease = await a.held(claim(run_id))
            assert proxy.hits == 2
            record = await client.hgetall(Keys(sweep).lease(run_id))
            assert (record["token"], record["fence"]) == (lease.token, str(lease.fence))
        assert await announced(client, sweep) == ["acquired", "acquired"]
        assert a.keeper.leases_held == 2


async def test_a_reply_that_is_cut_on_release_releases_once(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path) as a,
        redis.client() as client,
    ):
        lease = await a.held(claim("r1"))
        proxy.match, proxy.cut_replies = b"crashed", 1
        await a.keeper.release(lease.token, Outcome.CRASHED)
        await until(lambda: a.journalled() == set())
        assert proxy.hits == 1
        entry = await client.hgetall(Keys(sweep).run("r1"))
        assert entry["attempts"] == "1"


async def test_every_token_is_on_disk_before_a_request_bears_it(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    sent: set[str] = set()
    bare: set[str] = set()

    def look(data: bytes) -> None:
        for found in TOKEN.findall(data):
            token = found.decode()
            sent.add(token)
            if not (tmp_path / "node-a" / f"{token}.json").exists():
                bare.add(token)

    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path) as a,
    ):
        proxy.on_request = look
        leases = [await a.held(claim(f"r{number}")) for number in range(5)]
        await a.keeper._renewer.round()
        with anyio.move_on_after(0.0005):
            await a.keeper.acquire(claim("r-cancelled"))
        for lease in leases:
            await a.keeper.release(lease.token, Outcome.FAILED)
        await until(lambda: a.journalled() == set())
    assert {lease.token for lease in leases} <= sent
    assert bare == set()


async def test_a_release_that_the_stream_does_not_tell_of_is_found_by_the_timer(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(redis.url, sweep, tmp_path, "node-a", PATIENT) as a,
        node(proxy.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        proxy.match, proxy.drop_replies = b"XREAD", 1_000_000
        await proxy.reset_all()
        lease = await a.held(claim("r1"))
        results: list[Lease | Dropped] = []

        async def second() -> None:
            results.append(await b.keeper.acquire(resume("r1")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            await until(lambda: len(b.journalled()) == 1)
            await a.keeper.release(lease.token, Outcome.PREEMPTED)
        assert isinstance(results[0], Lease)


async def test_connections_that_are_reset_all_the_time_stop_nobody(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        FaultProxy(redis.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path) as a,
        node(redis.url, sweep, tmp_path, "node-b") as b,
    ):
        leases = []
        for number in range(10):
            leases.append(await a.held(claim(f"r{number}")))
            await proxy.reset_all()
        for lease in leases:
            await a.keeper.release(lease.token, Outcome.FAILED)
            await proxy.reset_all()
        await until(lambda: a.journalled() == set())
        assert await b.keeper.list_leases() == []
        assert (a.fenced, a.stopped) == ([], [])


async def test_a_run_is_registered_anew_also_when_the_answer_of_its_re_assertion_is_cut(
    sweep: SweepPath, tmp_path: Path
) -> None:
    by_hand = replace(FAST, ttl_seconds=3600.0, renew_seconds=600.0, timeout_seconds=10.0)
    async with (
        redis_server(tmp_path) as server,
        FaultProxy(server.socket).serve() as proxy,
        node(proxy.url, sweep, tmp_path, settings=by_hand) as a,
        server.client() as client,
    ):
        await a.held(claim("r1"))
        assert await a.keeper._renewer.round()
        await client.flushall()
        proxy.match, proxy.cut_replies = b'"leases":', 1
        assert await a.keeper._renewer.round()
        assert proxy.hits == 1
        with anyio.fail_after(20):
            while not await client.hget(Keys(sweep).run("r1"), "args"):  # noqa: ASYNC110
                await anyio.sleep(0.01)
