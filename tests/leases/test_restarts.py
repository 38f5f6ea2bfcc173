"""A daemon that comes back, an operator who takes a lease, a disk that is slow."""

import threading
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import Dropped, HolderState, Journal, JournalEntry, Lease
from coordinator.leases.keys import Keys
from tests.leases.nodes import PATIENT, claim, node, resume, until
from tests.support.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_a_restarted_daemon_renews_what_lives_and_releases_what_does_not(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path) as a:
        alive = await a.held(claim("r-alive"))
        ended = await a.held(claim("r-ended"))
        unknown = await a.held(claim("r-unknown"))
    adopted = (alive.token,)
    outcomes = {ended.token: Outcome.FINISHED}
    async with (
        node(redis.url, sweep, tmp_path, alive=adopted, ended=outcomes) as a,
        redis.client() as client,
    ):
        assert a.keeper.held() == [alive]
        (view,) = await a.keeper.list_leases()
        assert (view.run_id, view.fence) == ("r-alive", alive.fence)
        assert a.journalled() == {alive.token}
        keys = Keys(sweep)
        assert await client.hget(keys.run("r-ended"), "outcome") == "finished"
        crashed = await client.hget(keys.run(unknown.run_id), "outcome")
        assert crashed == "crashed"


async def test_a_lease_that_was_taken_while_the_daemon_was_away_is_fenced_at_its_restart(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path, "node-a", PATIENT) as a:
        lease = await a.held(claim("r1"))
    async with (
        node(redis.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        await b.held(resume("r1"))
        async with node(redis.url, sweep, tmp_path, "node-a", alive=(lease.token,)) as a:
            await until(lambda: a.fenced == [lease])
            await a.keeper.forget(lease.token)
            assert a.journalled() == set()
            assert a.keeper.leases_held == 0


async def test_an_operator_frees_a_lease_and_the_holder_is_told_to_stop_once(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(redis.url, sweep, tmp_path, "node-a", PATIENT) as a,
        node(redis.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        lease = await a.held(claim("r1"))
        await b.keeper.steal("r1", lease.fence, after_seconds=60.0)
        await until(lambda: a.stopped != [])
        assert not a.keeper.stands(lease.token)
        for _ in range(3):
            await a.keeper._renewer.round()
        assert a.stopped == [(lease, HolderState.FREED)]
        assert a.fenced == []
        await a.keeper.release(lease.token, Outcome.INTERRUPTED)
        await b.held(resume("r1"))


async def test_a_lease_that_was_lost_while_the_disk_was_slow_is_not_handed_out(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        node(redis.url, sweep, tmp_path, "node-a", PATIENT) as a,
        redis.client() as client,
    ):
        entered, leave = threading.Event(), threading.Event()
        put = Journal.put

        def slow_put(journal: Journal, entry: JournalEntry, durable: bool = True) -> None:
            if entry.state == "held" and not leave.is_set():
                entered.set()
                leave.wait(20)
            put(journal, entry, durable)

        monkeypatch.setattr(Journal, "put", slow_put)
        got: list[Lease | Dropped] = []

        async def first() -> None:
            got.append(await a.keeper.acquire(claim("r1")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await until(entered.is_set)
            (lost,) = a.keeper.held()
            key = Keys(sweep).lease("r1")
            await client.hset(key, mapping={"token": "another", "fence": lost.fence + 1})
            await until(lambda: a.keeper._holdings.renewable() == [])
            await client.hset(key, mapping={"state": "released"})
            leave.set()
        (lease,) = got
        assert isinstance(lease, Lease)
        assert lease.token != lost.token
        assert lease.fence > lost.fence + 1
        assert a.fenced == [], "no training ran under the lost lease"
        assert a.keeper.held() == [lease]
        await until(lambda: a.journalled() == {lease.token})
