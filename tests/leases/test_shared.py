"""What nodes know together besides leases, on a real Redis: breaker, pace, quarantine."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from coordinator.core.breaker import Breaker, BreakerState
from coordinator.core.lease import Dropped, DropReason, Lease
from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import LeaseKeeper, OfferStatus
from coordinator.leases.shared import STAYS_KEPT
from tests.leases.nodes import FAST, claim, node
from tests.support.redis import RedisServer

pytestmark = pytest.mark.anyio

OPEN = Breaker(BreakerState.OPEN, ("a",), 1, 99.0, reason="why")
CALM = replace(FAST, timeout_seconds=5.0, ttl_seconds=30.0, renew_seconds=1.0)
ONE = claim("r1")


@pytest.fixture
async def keepers(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> AsyncIterator[list[LeaseKeeper]]:
    """Two nodes of one sweep."""
    async with (
        node(redis.url, sweep, tmp_path, "a", CALM) as a,
        node(redis.url, sweep, tmp_path, "b", CALM) as b,
    ):
        yield [a.keeper, b.keeper]


async def test_a_breaker_is_changed_only_from_the_state_that_was_seen(
    keepers: list[LeaseKeeper],
) -> None:
    a, b = (keeper.shared for keeper in keepers)
    seen_by_a, seen_by_b = await a.breaker(), await b.breaker()
    assert seen_by_a.breaker == Breaker()
    swapped, now = await a.swap(seen_by_a, OPEN)
    assert (swapped, now.breaker) == (True, OPEN)

    refused, now = await b.swap(seen_by_b, Breaker())

    assert (refused, now.breaker) == (False, OPEN)
    assert (await b.swap(now, Breaker()))[0]
    assert (await a.breaker()).breaker == Breaker()


async def test_all_nodes_together_keep_to_one_pace(keepers: list[LeaseKeeper]) -> None:
    a, b = (keeper.shared for keeper in keepers)
    waits = [await node.pace(0.5, 3) for node in (a, b, a, b)]
    assert waits[:3] == [0.0, 0.0, 0.0]
    assert 0.0 < waits[3] <= 2.0


async def test_who_must_wait_is_told_a_turn_of_its_own_and_none_later_than_five_seconds(
    keepers: list[LeaseKeeper],
) -> None:
    a, b = (keeper.shared for keeper in keepers)
    assert await a.pace(1.0, 1) == 0.0
    began = anyio.current_time()
    turns = [await node.pace(1.0, 1) + anyio.current_time() for node in (a, b, a, b, a, b, a)]
    for before, after in pairwise(turns[:4]):
        assert after - before == pytest.approx(1.0, abs=0.5)
    assert max(turns) <= anyio.current_time() + 5.0
    assert turns[-1] >= began + 5.0


async def test_what_a_run_has_been_through_is_known_on_every_node(
    keepers: list[LeaseKeeper],
) -> None:
    a, b = (keeper.shared for keeper in keepers)
    assert await a.stays("r1") == []
    await a.add_stay("r1", '{"n": 0}')
    for number in range(STAYS_KEPT):
        await b.add_stay("r1", f'{{"n": {number}}}')
    await a.add_stay("r1", '{"n": 1}')  # sent twice, for its answer was lost
    await b.add_stay("r1", '{"n": "last"}')

    lines = await a.stays("r1")
    assert len(lines) == STAYS_KEPT
    assert (lines[0], lines[-1]) == ('{"n": 1}', '{"n": "last"}')
    assert await a.stays("r2") == []


async def train(keeper: LeaseKeeper, outcome: Outcome) -> None:
    lease = await keeper.acquire(ONE)
    assert isinstance(lease, Lease)
    await keeper.release(lease.token, outcome)


async def test_a_run_that_fails_at_each_resume_is_quarantined_on_every_node_until_pardoned(
    keepers: list[LeaseKeeper],
) -> None:
    a, b = keepers
    await train(a, Outcome.PREEMPTED)
    await a.offer("r1", 0.0, 0)
    assert [await a.shared.strike("r1", 2, "it fails") for _ in range(2)] == [False, True]

    dropped = await b.acquire(ONE)

    assert isinstance(dropped, Dropped)
    assert (dropped.reason, dropped.detail) == (DropReason.QUARANTINED, "it fails")
    assert await b.offer("r1", 0.0, 3) is OfferStatus.QUARANTINED
    assert await b.take() is None
    detail = await b.operations.show("r1")
    assert detail is not None
    assert detail.quarantined == "it fails"

    assert await b.shared.pardon("r1")
    assert not await b.shared.pardon("r1")
    taken = await a.take()
    assert taken is not None
    assert taken.run_id == "r1"
    await train(a, Outcome.FINISHED)


async def test_strikes_must_be_in_a_row(keepers: list[LeaseKeeper]) -> None:
    shared = keepers[0].shared
    assert not await shared.strike("r1", 2, "it fails")
    await shared.clear_strikes("r1")
    assert not await shared.strike("r1", 2, "it fails")


async def test_a_run_that_never_had_a_lease_can_be_handed_over(keepers: list[LeaseKeeper]) -> None:
    a, b = keepers
    assert await a.offer("r9", 0.0, 0) is OfferStatus.UNKNOWN
    assert await a.offer("r9", 0.0, 0, ("t.py", '{"n": {"value": 9}}')) is OfferStatus.QUEUED
    taken = await b.take()
    assert taken is not None
    assert (taken.run_id, taken.program, taken.args) == ("r9", "t.py", {"n": {"value": 9}})
