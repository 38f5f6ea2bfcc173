"""What both kinds of leases promise to the supervisor: the keeper on a real Redis, and none."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import Lease, LeaseKeeper, Leases, NoLeases
from tests.leases.nodes import FAST, claim, resume
from tests.support.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["redis", "off"])
async def leases(
    request: pytest.FixtureRequest, redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> AsyncIterator[Leases]:
    chosen: Leases
    if request.param == "redis":
        chosen = LeaseKeeper(redis.url, sweep, "node-a", FAST, tmp_path / "journal")
    else:
        chosen = NoLeases("node-a")
    chosen.adopt((), {})
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            await tasks.start(chosen.run)
        yield chosen
        tasks.cancel_scope.cancel()


async def test_a_claim_without_a_rival_is_granted(leases: Leases) -> None:
    wanted = claim("r1", slot=2)
    lease = await leases.acquire(wanted)
    assert isinstance(lease, Lease)
    assert (lease.run_id, lease.kind, lease.slot) == ("r1", wanted.kind, 2)
    assert lease.fence > 0
    assert leases.leases_held == 1


async def test_each_claim_has_a_token_and_a_larger_fence_of_its_own(leases: Leases) -> None:
    granted = [await leases.acquire(claim(f"r{number}")) for number in range(3)]
    held = [lease for lease in granted if isinstance(lease, Lease)]
    assert len({lease.token for lease in held}) == 3
    assert sorted(lease.fence for lease in held) == [lease.fence for lease in held]


async def test_what_is_held_is_listed_until_it_is_released(leases: Leases) -> None:
    lease = await leases.acquire(claim("r1"))
    assert isinstance(lease, Lease)
    (view,) = await leases.list_leases()
    assert (view.run_id, view.owner, view.fence, view.state) == (
        "r1",
        "node-a",
        lease.fence,
        "held",
    )
    await leases.release(lease.token, Outcome.PREEMPTED)
    assert await leases.list_leases() == []
    assert leases.leases_held == 0


async def test_a_lease_stands_from_its_grant_to_its_release(leases: Leases) -> None:
    assert not leases.stands("nobody")
    lease = await leases.acquire(claim("r1"))
    assert isinstance(lease, Lease)
    assert leases.stands(lease.token)
    await leases.release(lease.token, Outcome.PREEMPTED)
    assert not leases.stands(lease.token)


async def test_a_released_run_can_be_acquired_again(leases: Leases) -> None:
    first = await leases.acquire(claim("r1"))
    assert isinstance(first, Lease)
    await leases.release(first.token, Outcome.PREEMPTED)
    second = await leases.acquire(resume("r1"))
    assert isinstance(second, Lease)
    assert second.fence > first.fence


async def test_a_token_that_is_not_held_can_be_released_and_forgotten(leases: Leases) -> None:
    await leases.release("nobody", Outcome.FAILED)
    await leases.forget("nobody")
    assert leases.leases_held == 0


async def test_a_forgotten_lease_is_not_held(leases: Leases) -> None:
    lease = await leases.acquire(claim("r1"))
    assert isinstance(lease, Lease)
    await leases.forget(lease.token)
    assert leases.leases_held == 0


async def test_claims_are_admitted_until_it_is_closed(leases: Leases) -> None:
    assert leases.health().state == "ok"
    assert leases.admits(None)
    await leases.close(1.0)
    assert not leases.admits(None)


async def test_close_ends_run(redis: RedisServer, sweep: SweepPath, tmp_path: Path) -> None:
    for leases in (
        LeaseKeeper(redis.url, sweep, "node-a", FAST, tmp_path / "journal"),
        LeaseKeeper(f"unix://{tmp_path}/none", sweep, "node-a", FAST, tmp_path / "journal"),
        NoLeases("node-a"),
    ):
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leases.run)
                await anyio.wait_all_tasks_blocked()
                await leases.close(0.1)


async def test_without_leases_a_run_is_granted_twice() -> None:
    """That is what makes the judge of overlaps bite."""
    off = NoLeases("node-a")
    assert isinstance(await off.acquire(claim("r1")), Lease)
    assert isinstance(await off.acquire(claim("r1")), Lease)
    assert off.leases_held == 2
