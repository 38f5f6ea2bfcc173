"""What goes wrong between a node and Redis, with real sockets, servers and signals."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import Dropped, DropReason, HolderState, Journal, JournalEntry, Lease
from coordinator.leases.keys import Keys
from tests.leases.nodes import FAST, NO_RACE, claim, node, resume, until
from tests.support.redis import FaultProxy, RedisServer, redis_server

pytestmark = pytest.mark.anyio

PATIENT = replace(NO_RACE, handoff_seconds=60.0)
TOKEN = re.compile(rb"\$32\r\n([0-9a-f]{32})\r\n")


async def announced(client: Redis, sweep: SweepPath) -> list[str]:
    """The events of the stream."""
    entries: Any = await client.xrange(Keys(sweep).stream)
    return [fields["event"] for _, fields in entries]


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


async def test_after_a_wipe_the_owner_keeps_its_run_and_the_registry_comes_back(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        redis_server(tmp_path) as server,
        node(server.url, sweep, tmp_path, "node-a", PATIENT) as a,
        node(server.url, sweep, tmp_path, "node-b", NO_RACE) as b,
        server.client() as client,
    ):
        with capture_logs() as events:
            lease = await a.held(claim("r1"))
            await client.flushall()
            result = await b.keeper.acquire(resume("r1"))
            assert isinstance(result, Dropped)
            assert result.reason is DropReason.HANDOFF_TIMEOUT
            assert a.keeper.held() == [lease]
            registry = await client.hgetall(Keys(sweep).run("r1"))
            assert registry["program"] == "train.py"
        names = [event["event"] for event in events]
        assert "redis_wiped" in names
        assert "lease_reasserted" in names
        other = await a.held(claim("r2"))
        assert other.fence > lease.fence
        assert (a.fenced, b.fenced) == ([], [])


async def test_a_server_that_was_killed_without_persistence_costs_nobody_its_run(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        redis_server(tmp_path) as server,
        node(server.url, sweep, tmp_path, "node-a", PATIENT) as a,
    ):
        lease = await a.held(claim("r1"))
        await server.kill()
        await until(lambda: a.keeper.health().state != "ok")
        await server.start()
        await until(lambda: a.keeper.health().state == "ok")
        (view,) = await a.keeper.list_leases()
        assert (view.run_id, view.fence, view.state) == ("r1", lease.fence, "held")
        assert (a.fenced, a.stopped) == ([], [])


async def test_a_frozen_redis_makes_no_ghost_holder(sweep: SweepPath, tmp_path: Path) -> None:
    async with (
        redis_server(tmp_path) as server,
        node(server.url, sweep, tmp_path, "node-a", PATIENT) as a,
        node(server.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        held = await a.held(claim("r1"))
        server.freeze()
        async with anyio.create_task_group() as tasks:
            for slot in range(4):
                tasks.start_soon(b.keeper.acquire, resume("r1", slot))
                tasks.start_soon(b.keeper.acquire, resume(f"r-new{slot}", slot))
            await anyio.sleep(FAST.ttl_seconds + FAST.grace_seconds + FAST.timeout_seconds)
            tasks.cancel_scope.cancel()
        server.thaw()
        await until(lambda: b.journalled() == set())
        await until(lambda: a.keeper.health().state == "ok")
        assert b.keeper.leases_held == 0
        (view,) = [v for v in await a.keeper.list_leases() if v.state != "claimable"]
        assert (view.run_id, view.owner, view.fence) == ("r1", "node-a", held.fence)
        assert a.fenced == []


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


async def test_while_redis_is_full_nothing_new_is_claimed_and_nothing_held_is_lost(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        redis_server(tmp_path) as server,
        node(server.url, sweep, tmp_path) as a,
        server.client() as client,
    ):
        lease = await a.held(claim("r1"))
        await client.config_set("maxmemory", "1mb")
        got: list[Lease | Dropped] = []

        async def late() -> None:
            got.append(await a.keeper.acquire(claim("r2")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late)
            await until(lambda: not a.keeper.admits(None))
            assert await a.keeper._renewer.round()
            assert a.keeper.health().state == "ok"
            await a.keeper.release(lease.token, Outcome.PREEMPTED)
            await until(lambda: lease.token not in a.journalled())
            assert got == []
            await client.config_set("maxmemory", "0")
        assert isinstance(got[0], Lease)
        assert a.keeper.admits(None)


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
