"""The right to change the sweep itself: one node's, for a while, and people's marks are kept."""

from collections.abc import AsyncIterator

import pytest

from coordinator.core.model import Outcome
from coordinator.core.sweep import SweepVerb
from coordinator.leases.sweep_hold import HoldStatus, SweepHold
from tests.leases.virtual import SETTINGS, Virtual
from tests.support.redis import RedisServer

pytestmark = pytest.mark.anyio
HOLD = 75.0


@pytest.fixture
async def v(redis: RedisServer, sweep: object) -> AsyncIterator[Virtual]:
    async with redis.client() as client:
        yield await Virtual(client, sweep).settled()  # type: ignore[arg-type]


def hold_of(v: Virtual, node: str = "node-a") -> SweepHold:
    return SweepHold(v.store(node), v.keys, node, SETTINGS)


async def change(
    v: Virtual, verb: SweepVerb, *waits: str, worked: bool = True, node: str = "node-a"
) -> tuple[HoldStatus, str]:
    """Take the sweep, change it, give it back; what became of the wish."""
    async with hold_of(v, node).taken(verb, HOLD, waits) as hold:
        hold.worked = worked
    return hold.status, hold.detail


async def test_one_node_holds_the_sweep_at_a_time(v: Virtual) -> None:
    async with hold_of(v).taken(SweepVerb.REVIVE, HOLD, ["r1@1"]) as first:
        assert first.status is HoldStatus.GRANTED
        assert await change(v, SweepVerb.STOP, node="node-b") == (HoldStatus.BUSY, "node-a")
    assert (await change(v, SweepVerb.STOP, node="node-b"))[0] is HoldStatus.GRANTED


async def test_a_hold_whose_node_died_runs_out_and_its_late_end_touches_nobody(v: Virtual) -> None:
    async with hold_of(v).taken(SweepVerb.REVIVE, HOLD, ["r1@1"]) as dead:
        await v.advance(HOLD - 0.001)
        assert (await change(v, SweepVerb.PAUSE, node="node-b"))[0] is HoldStatus.BUSY
        await v.advance(0.001)
        async with hold_of(v, "node-b").taken(SweepVerb.STOP, HOLD) as second:
            assert second.status is HoldStatus.GRANTED
            fence = await v.client.hget(v.keys.sweep_state, "fence")
            second.worked = dead.worked = True
            await hold_of(v)._end("a token of the dead", SweepVerb.REVIVE, dead)
            assert (await change(v, SweepVerb.PAUSE))[0] is HoldStatus.BUSY
    assert fence in {"2", b"2"}
    assert await change(v, SweepVerb.REVIVE, "r1@2") == (HoldStatus.ENDED, "stop")


@pytest.mark.parametrize("verb", [SweepVerb.STOP, SweepVerb.CANCEL])
async def test_what_a_person_ended_is_not_revived_until_a_person_resumes_it(
    v: Virtual, verb: SweepVerb
) -> None:
    await change(v, verb)
    assert await change(v, SweepVerb.REVIVE, "r1@1") == (HoldStatus.ENDED, verb.value)
    await change(v, SweepVerb.PAUSE)
    assert await change(v, SweepVerb.REVIVE, "r1@1") == (HoldStatus.ENDED, verb.value)
    await change(v, SweepVerb.RESUME)
    assert (await change(v, SweepVerb.REVIVE, "r1@1"))[0] is HoldStatus.GRANTED


async def test_a_stop_that_failed_leaves_no_mark_and_a_resume_that_failed_takes_none(
    v: Virtual,
) -> None:
    await change(v, SweepVerb.STOP, worked=False)
    assert (await change(v, SweepVerb.REVIVE, worked=False))[0] is HoldStatus.GRANTED
    await change(v, SweepVerb.CANCEL)
    await change(v, SweepVerb.RESUME, worked=False)
    assert await change(v, SweepVerb.REVIVE) == (HoldStatus.ENDED, "cancel")


async def test_the_mark_stands_while_the_sweep_is_still_being_stopped(v: Virtual) -> None:
    async with hold_of(v).taken(SweepVerb.STOP, HOLD):
        await v.advance(HOLD + 1)  # its node died in between
        assert await change(v, SweepVerb.REVIVE, node="node-b") == (HoldStatus.ENDED, "stop")


async def test_a_sweep_is_not_revived_twice_for_the_same_runs(v: Virtual) -> None:
    assert (await change(v, SweepVerb.REVIVE, "r2@1", "r1@1"))[0] is HoldStatus.GRANTED
    assert (await change(v, SweepVerb.REVIVE, "r1@1", "r2@1"))[0] is HoldStatus.AGAIN
    assert (await change(v, SweepVerb.REVIVE, "r1@9", "r2@1"))[0] is HoldStatus.GRANTED
    await change(v, SweepVerb.RESUME)
    assert (await change(v, SweepVerb.REVIVE, "r1@9", "r2@1"))[0] is HoldStatus.GRANTED


async def test_a_revival_that_failed_is_tried_again(v: Virtual) -> None:
    await change(v, SweepVerb.REVIVE, "r1@1", worked=False)
    assert (await change(v, SweepVerb.REVIVE, "r1@1"))[0] is HoldStatus.GRANTED


async def test_runs_in_the_rescue_queue_count_and_each_new_attempt_is_another(v: Virtual) -> None:
    lease = await v.granted()
    await v.release(lease, Outcome.CRASHED)
    await v.store().offer("r1", 0.0, 3)
    async with hold_of(v).taken(SweepVerb.REVIVE, HOLD) as hold:
        assert (hold.status, hold.rescues) == (HoldStatus.GRANTED, 1)
        hold.worked = True
    assert (await change(v, SweepVerb.REVIVE))[0] is HoldStatus.AGAIN
    await v.store().offer("r1", 0.0, 3)
    assert (await change(v, SweepVerb.REVIVE))[0] is HoldStatus.GRANTED
