"""One and two nodes on a healthy Redis."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.leases import Dropped, DropReason, Lease, LeaseKeeper
from coordinator.leases.clock import boottime_seconds
from coordinator.leases.holdings import Holding
from coordinator.leases.keys import Keys
from tests.leases.nodes import FAST, NO_RACE, Node, claim, node, resume, until
from tests.support.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_a_lease_is_granted_listed_and_released(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path) as a:
        lease = await a.held(claim("r1", slot=3))
        (view,) = await a.keeper.list_leases()
        assert (view.run_id, view.owner, view.slot, view.state) == ("r1", "node-a", 3, "held")
        assert view.fence == lease.fence
        assert a.keeper.leases_held == 1
        assert a.journalled() == {lease.token}
        await a.keeper.release(lease.token, Outcome.FAILED)
        assert await a.keeper.list_leases() == []
        assert a.keeper.leases_held == 0
        assert a.journalled() == set()


async def test_a_young_lease_makes_a_second_claim_a_race(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    settings = replace(FAST, race_window_seconds=60.0)
    async with (
        node(redis.url, sweep, tmp_path, "node-a", settings) as a,
        node(redis.url, sweep, tmp_path, "node-b", settings) as b,
    ):
        await a.held(claim("r1"))
        result = await b.keeper.acquire(resume("r1"))
        assert isinstance(result, Dropped)
        assert (result.reason, result.holder) == (DropReason.RACE, "node-a")
        await until(lambda: b.journalled() == set())


async def test_two_claims_of_one_node_conflict_like_any_others(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    settings = replace(FAST, race_window_seconds=60.0)
    async with node(redis.url, sweep, tmp_path, "node-a", settings) as a:
        await a.held(claim("r1", slot=0))
        result = await a.keeper.acquire(claim("r1", slot=1))
        assert isinstance(result, Dropped)
        assert result.reason is DropReason.RACE
        assert a.keeper.leases_held == 1


async def test_a_clean_release_wakes_the_claim_that_waits_within_a_tenth_of_a_second(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    settings = replace(NO_RACE, renew_seconds=6.0, ttl_seconds=60.0, handoff_seconds=60.0)
    async with (
        node(redis.url, sweep, tmp_path, "node-a", settings) as a,
        node(redis.url, sweep, tmp_path, "node-b", settings) as b,
    ):
        times = [await _hand_over(redis, a, b, f"r{number}") for number in range(5)]
        assert min(times) < 0.1, "the poll's floor is 1.35 s here; a loaded machine may be late"


async def _hand_over(redis: RedisServer, a: Node, b: Node, run_id: str) -> float:
    """Seconds from a release by `a` to the grant to `b`, which waits for it."""
    first = await a.held(claim(run_id))
    got: list[tuple[float, Lease]] = []

    async def second() -> None:
        lease = await b.held(resume(run_id))
        got.append((anyio.current_time(), lease))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second)
        await until(lambda: len(b.journalled()) > b.keeper.leases_held)
        # The reader must block before the release, else the slow poll finds it.
        async with redis.client() as client:
            with anyio.fail_after(20):
                while int((await client.info("clients"))["blocked_clients"]) < 1:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        await anyio.wait_all_tasks_blocked()
        released = anyio.current_time()
        await a.keeper.release(first.token, Outcome.PREEMPTED)
    when, lease = got[0]
    assert lease.fence > first.fence
    return when - released


async def test_a_holder_that_goes_on_ends_the_wait(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(redis.url, sweep, tmp_path, "node-a", NO_RACE) as a,
        node(redis.url, sweep, tmp_path, "node-b", NO_RACE) as b,
    ):
        await a.held(claim("r1"))
        began = anyio.current_time()
        result = await b.keeper.acquire(resume("r1"))
        assert isinstance(result, Dropped)
        assert result.reason is DropReason.HANDOFF_TIMEOUT
        assert anyio.current_time() - began >= NO_RACE.handoff_seconds
        assert a.fenced == []


async def test_of_two_waiting_claims_one_is_granted_and_one_dropped(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    settings = replace(FAST, handoff_seconds=30.0)
    async with (
        node(redis.url, sweep, tmp_path, "node-a", settings) as a,
        node(redis.url, sweep, tmp_path, "node-b", settings) as b,
    ):
        first = await a.held(claim("r1"))
        await anyio.sleep(settings.race_window_seconds)
        results: list[Lease | Dropped] = []

        async def another(slot: int) -> None:
            results.append(await b.keeper.acquire(resume("r1", slot)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(another, 0)
            tasks.start_soon(another, 1)
            await until(lambda: len(b.journalled()) == 2)
            await a.keeper.release(first.token, Outcome.PREEMPTED)
        assert sorted(type(result).__name__ for result in results) == ["Dropped", "Lease"]


async def test_a_resume_of_a_run_that_finished_is_dropped(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(redis.url, sweep, tmp_path, "node-a", NO_RACE) as a,
        node(redis.url, sweep, tmp_path, "node-b", NO_RACE) as b,
    ):
        lease = await a.held(claim("r1"))
        await a.keeper.release(lease.token, Outcome.FINISHED)
        result = await b.keeper.acquire(resume("r1"))
        assert isinstance(result, Dropped)
        assert result.reason is DropReason.FINISHED
        assert "node-a" in result.detail


async def test_a_claim_that_waits_learns_that_the_holder_finished(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    settings = replace(NO_RACE, handoff_seconds=30.0)
    async with node(redis.url, sweep, tmp_path, "node-a", settings) as a:
        lease = await a.held(claim("r1"))
        results: list[Lease | Dropped] = []

        async def second() -> None:
            results.append(await a.keeper.acquire(resume("r1", 1)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            await until(lambda: len(a.journalled()) == 2)
            await a.keeper.release(lease.token, Outcome.FINISHED)
        (result,) = results
        assert isinstance(result, Dropped)
        assert result.reason is DropReason.FINISHED


async def test_a_run_that_was_preempted_is_granted_again_at_once(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path) as a:
        lease = await a.held(claim("r1"))
        await a.keeper.release(lease.token, Outcome.PREEMPTED)
        again = await a.held(resume("r1"))
        assert again.fence > lease.fence


async def test_the_registry_remembers_arguments_attempts_and_the_last_outcome(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path) as a, redis.client() as client:
        for outcome in (Outcome.PREEMPTED, Outcome.CRASHED):
            lease = await a.held(claim("r1"))
            await a.keeper.release(lease.token, outcome)
        entry = await client.hgetall(Keys(sweep).run("r1"))
        assert entry["program"] == "train.py"
        assert entry["args"] == '{"lr": {"value": 0.1}}'
        assert (entry["outcome"], entry["outcome_node"]) == ("crashed", "node-a")
        assert (entry["attempts"], entry["attempts:preempted"]) == ("2", "1")


async def test_only_a_shared_redis_makes_unknown_resumed_runs_wait(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    for shared in (False, True):
        keeper = LeaseKeeper(redis.url, sweep, "n", FAST, tmp_path / "j", shared=shared)
        async with anyio.create_task_group() as tasks:
            await tasks.start(keeper.run)
            began = anyio.current_time()
            assert isinstance(await keeper.acquire(resume(f"r-{shared}")), Lease)
            waited = anyio.current_time() - began
            assert (waited > FAST.ttl_seconds) is shared
            tasks.cancel_scope.cancel()
        async with redis.client() as client:
            await client.delete(Keys(sweep).epoch)


async def test_a_hundred_cancelled_claims_get_no_wrong_answer_and_leak_no_connection(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path) as a, redis.client() as client:
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.004):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(a.keeper.acquire, claim(f"r{number}"))
                await anyio.sleep(delay)
                tasks.cancel_scope.cancel()
            await until(lambda: a.journalled() == set())
        assert await a.keeper.list_leases() == []
        assert a.keeper.leases_held == 0
        assert int((await client.info("clients"))["connected_clients"]) <= 12
        for number in range(20):
            await a.held(claim(f"r{number}", CommandKind.RUN))


async def test_a_thousand_leases_are_renewed_in_one_round_of_less_than_50_ms(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    # No round but those of the test: a loaded machine takes longer than ten seconds over it.
    settings = replace(FAST, ttl_seconds=3600.0, renew_seconds=600.0, timeout_seconds=10.0)
    async with node(redis.url, sweep, tmp_path, settings=settings) as a, redis.client() as client:
        for number in range(1000):
            wanted = claim(f"r{number}", slot=number)
            lease = Lease(wanted.run_id, wanted.kind, f"{number:032x}", number + 1, number)
            a.keeper._holdings.add(Holding(lease, wanted, boottime_seconds()))
        assert await a.keeper._renewer.round(), "the first round writes the records anew"
        assert len(await a.keeper.list_leases()) == 1000
        await until(lambda: a.keeper._claims.limit.borrowed_tokens == 0, 60)
        spent = []
        for _ in range(5):
            calls, usec = await _scripts_run(client)
            assert await a.keeper._renewer.round()
            calls_now, usec_now = await _scripts_run(client)
            assert calls_now - calls == 8, "1,000 leases in chunks of 128"
            spent.append((usec_now - usec) / 1e6)
        assert min(spent) < 0.05, "the server's own time; a loaded machine may take longer"


async def _scripts_run(client: Redis) -> tuple[int, int]:
    """Scripts that the server has run, and the microseconds that they took."""
    stats = await client.info("commandstats")
    kinds = [stats[name] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats]
    return sum(int(kind["calls"]) for kind in kinds), sum(int(kind["usec"]) for kind in kinds)
