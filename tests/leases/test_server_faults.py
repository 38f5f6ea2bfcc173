"""What a Redis server can do to leases: freeze, die, forget, fill up, become unfit."""

from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import Dropped, DropReason, Lease
from coordinator.leases.keys import Keys
from tests.leases.nodes import FAST, NO_RACE, PATIENT, claim, node, resume, until
from tests.support.redis import RedisServer, redis_server
from tests.support.topology import ask

pytestmark = pytest.mark.anyio


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


async def stall(server: RedisServer, way: str, seconds: float) -> None:
    """The server does nothing for so long. The three differ in what becomes of queued requests."""
    match way:
        case "SIGSTOP":
            server.freeze()
            await anyio.sleep(seconds)
            server.thaw()
        case "CLIENT PAUSE":
            await ask(server, "CLIENT", "PAUSE", round(seconds * 1000), "ALL")
            await anyio.sleep(seconds)
        case _:
            await ask(server, "DEBUG", "SLEEP", seconds)


@pytest.mark.parametrize("way", ["SIGSTOP", "CLIENT PAUSE", "DEBUG SLEEP"])
async def test_a_redis_that_stands_still_beyond_ttl_and_grace_makes_no_ghost_holder(
    way: str, sweep: SweepPath, tmp_path: Path
) -> None:
    beyond = FAST.ttl_seconds + FAST.grace_seconds + FAST.timeout_seconds
    async with (
        redis_server(tmp_path, "--enable-debug-command", "yes") as server,
        node(server.url, sweep, tmp_path, "node-a", PATIENT) as a,
        node(server.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        held = await a.held(claim("r1"))
        async with anyio.create_task_group() as stalled:
            stalled.start_soon(stall, server, way, beyond + 0.3)
            await until(lambda: a.keeper.health().state == "uncertain")
            async with anyio.create_task_group() as tasks:
                for slot in range(4):
                    tasks.start_soon(b.keeper.acquire, resume("r1", slot))
                    tasks.start_soon(b.keeper.acquire, resume(f"r-new{slot}", slot))
                await until(lambda: a.keeper.health().state == "lost")
                await anyio.sleep(beyond - FAST.ttl_seconds - FAST.timeout_seconds / 2)
                tasks.cancel_scope.cancel()
        await until(lambda: b.journalled() == set())
        await until(lambda: a.keeper.health().state == "ok")
        assert b.keeper.leases_held == 0
        (view,) = [v for v in await a.keeper.list_leases() if v.state != "claimable"]
        assert (view.run_id, view.owner, view.fence) == ("r1", "node-a", held.fence)
        assert a.fenced == []


async def test_a_server_that_becomes_unfit_keeps_its_leases_and_is_given_no_new_ones(
    sweep: SweepPath, tmp_path: Path
) -> None:
    with capture_logs() as events:
        async with redis_server(tmp_path) as server, node(server.url, sweep, tmp_path) as a:
            lease = await a.held(claim("r1"))
            await ask(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            await until(lambda: not a.keeper.admits(None))
            assert "noeviction" in a.keeper.health().detail
            assert await a.keeper._renewer.round()
            assert not a.keeper.admits(None), "a renewal does not make it fit"
            assert (a.keeper.held(), a.fenced, a.stopped) == ([lease], [], [])
            await ask(server, "CONFIG", "SET", "maxmemory-policy", "noeviction")
            await until(lambda: a.keeper.admits(None))
    names = [event["event"] for event in events]
    assert names.count("redis_unfit") == names.count("redis_recovered") == 1


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
