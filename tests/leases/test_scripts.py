"""The real scripts on a virtual clock: boundaries, idempotence, wipes, clock jumps."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from coordinator.core.lease import Conflict
from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.leases import DropReason, Lease
from coordinator.leases.answers import (
    Finished,
    Granted,
    Late,
    NotYet,
    ReleaseStatus,
    RenewStatus,
    StealStatus,
    Void,
    read_list,
)
from coordinator.leases.scripts import NAMES, lua_source
from tests.leases.virtual import GRACE, START_MS, TTL, Virtual
from tests.support.redis import RedisServer, redis_server

pytestmark = pytest.mark.anyio

TICK = 0.001


@pytest.fixture
async def v(redis: RedisServer, sweep: SweepPath) -> AsyncIterator[Virtual]:
    async with redis.client() as client:
        yield await Virtual(client, sweep).settled()


async def test_the_same_token_twice_gets_the_same_fence(v: Virtual) -> None:
    token, first = await v.acquire()
    _, second = await v.acquire(token=token)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert (first.fence, first.why, second.why) == (second.fence, "claim", "again")


@pytest.mark.parametrize("passed", [0.0, TTL - TICK, TTL, TTL + GRACE - TICK])
async def test_a_lease_stands_until_deadline_and_grace_are_over(v: Virtual, passed: float) -> None:
    lease = await v.granted()
    await v.advance(passed)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Conflict)
    assert (answer.holder, answer.fence) == ("node-a", lease.fence)
    assert (answer.age_seconds, answer.silent_seconds) == (passed, passed)
    assert answer.claimable_in_seconds == pytest.approx(TTL + GRACE - passed)


async def test_after_the_grace_another_claim_is_granted_with_a_larger_fence(v: Virtual) -> None:
    lease = await v.granted()
    await v.advance(TTL + GRACE)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Granted)
    assert answer.fence > lease.fence
    assert answer.why == "takeover"
    (renewed,) = await v.renew(lease)
    assert (renewed.status, renewed.fence) == (RenewStatus.TAKEN, answer.fence)
    assert renewed.holder == "node-b"


async def test_a_late_renewal_succeeds_with_the_same_fence_while_nobody_claimed(
    v: Virtual,
) -> None:
    lease = await v.granted()
    await v.advance(20 * (TTL + GRACE))
    (renewed,) = await v.renew(lease)
    assert (renewed.status, renewed.fence) == (RenewStatus.OK, lease.fence)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Conflict)


async def test_the_record_outlives_its_deadline_by_a_day(v: Virtual) -> None:
    lease = await v.granted()
    for _ in range(2):
        left = await v.client.pttl(v.keys.lease("r1"))
        assert left > (86_400 + TTL) * 1000 - 60_000
        await v.renew(lease)


async def test_an_acquire_after_its_not_after_time_is_not_granted(v: Virtual) -> None:
    _, late = await v.acquire(not_after_ms=v.now_ms - 1)
    assert late == Late()
    assert not await v.client.exists(v.keys.lease("r1"))
    _, just = await v.acquire(not_after_ms=v.now_ms)
    assert isinstance(just, Granted)


async def test_a_delayed_acquire_cannot_revive_a_released_token(v: Virtual) -> None:
    lease = await v.granted()
    assert await v.release(lease) is ReleaseStatus.RELEASED
    _, answer = await v.acquire(token=lease.token)
    assert answer == Void()


async def test_a_release_before_its_own_acquire_voids_the_token(v: Virtual) -> None:
    early = Lease("r1", CommandKind.RESUME, "t-early", 0, 0)
    assert await v.release(early) is ReleaseStatus.ABSENT
    _, answer = await v.acquire(token="t-early")
    assert answer == Void()


async def test_a_release_twice_counts_once(v: Virtual) -> None:
    lease = await v.granted()
    assert await v.release(lease, Outcome.CRASHED) is ReleaseStatus.RELEASED
    assert await v.release(lease, Outcome.CRASHED) is ReleaseStatus.AGAIN
    assert await v.client.hget(v.keys.run("r1"), "attempts") == "1"


async def test_a_release_leaves_another_claims_lease_and_outcome_alone(v: Virtual) -> None:
    lease = await v.granted()
    await v.advance(TTL + GRACE)
    other = await v.granted(node="node-b")
    assert await v.release(lease, Outcome.FINISHED) is ReleaseStatus.NOT_YOURS
    (renewed,) = await v.renew(other, node="node-b")
    assert renewed.status is RenewStatus.OK
    assert await v.client.hget(v.keys.run("r1"), "outcome") is None


async def test_a_finished_run_is_refused_and_any_other_outcome_is_not(v: Virtual) -> None:
    for outcome in Outcome:
        run_id = f"r-{outcome}"
        lease = await v.granted(run_id)
        await v.release(lease, outcome)
        _, answer = await v.acquire(run_id)
        if outcome is Outcome.FINISHED:
            assert answer == Finished("node-a")
        else:
            assert isinstance(answer, Granted), outcome


async def test_a_claim_that_was_dropped_is_noted_and_told_to_the_holder(v: Virtual) -> None:
    lease = await v.granted()
    dropped = Lease("r1", CommandKind.RESUME, "t-dropped", 0, 0)
    noted = await v.store("node-b").release(dropped, None, DropReason.RACE)
    assert (noted.status, noted.missed) == (ReleaseStatus.NOT_YOURS, False)
    entry = await v.client.hgetall(v.keys.run("r1"))
    assert (entry["dropped_by"], entry["dropped_why"], entry["drops"]) == ("node-b", "race", "1")
    await v.advance(1)
    released = await v.store().release(lease, Outcome.PREEMPTED)
    assert (released.status, released.missed) == (ReleaseStatus.RELEASED, True)
    repeated = await v.store().release(lease, Outcome.PREEMPTED)
    assert (repeated.status, repeated.missed) == (ReleaseStatus.AGAIN, True)
    await v.advance(1)
    again = await v.granted()
    assert (await v.store().release(again, Outcome.PREEMPTED)).missed is False


async def test_fences_grow_from_counter_record_hint_and_time(v: Virtual) -> None:
    first = await v.granted("r1")
    assert first.fence == START_MS
    second = await v.granted("r2")
    assert second.fence == START_MS + 1, "the counter is shared by all runs"
    await v.client.delete(v.keys.fence)
    await v.advance(-3600)
    await v.release(first)
    third = await v.granted("r1")
    assert third.fence == first.fence + 1, "the record's fence, though the counter is lost"
    fourth = await v.granted("r3", hint=third.fence + 100)
    assert fourth.fence == third.fence + 101


# --- a wipe ---------------------------------------------------------------------------------------
async def wipe(v: Virtual) -> None:
    """All keys of the sweep are gone, as after FLUSHALL."""
    found = [key async for key in v.client.scan_iter(match=f"{v.keys.prefix}*", count=1000)]
    await v.client.delete(*found)


async def test_after_a_wipe_resumed_runs_wait_until_owners_had_time_to_come_back(
    v: Virtual,
) -> None:
    await v.granted()
    await wipe(v)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, NotYet)
    assert answer.wait_seconds == TTL + GRACE
    await v.advance(TTL + GRACE - TICK)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, NotYet)
    await v.advance(TICK)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Granted)


async def test_after_a_wipe_new_runs_do_not_wait(v: Virtual) -> None:
    await wipe(v)
    _, answer = await v.acquire("r-new", kind=CommandKind.RUN)
    assert isinstance(answer, Granted)


async def test_after_a_wipe_a_run_that_was_released_since_does_not_wait(v: Virtual) -> None:
    await wipe(v)
    token, answer = await v.acquire("r-new", kind=CommandKind.RUN)
    assert isinstance(answer, Granted)
    await v.release(Lease("r-new", CommandKind.RUN, token, answer.fence, 0), Outcome.PREEMPTED)
    assert isinstance((await v.acquire("r-new"))[1], Granted)


async def test_an_owner_re_asserts_with_its_old_fence_and_later_fences_are_larger(
    v: Virtual,
) -> None:
    lease = await v.granted(hint=START_MS * 2)
    await wipe(v)
    (renewed,) = await v.renew(lease)
    assert (renewed.status, renewed.fence) == (RenewStatus.REASSERTED, lease.fence)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Conflict)
    assert answer.age_seconds > 1e6, "a re-asserted lease is never young"
    _, new = await v.acquire("r2", kind=CommandKind.RUN)
    assert isinstance(new, Granted)
    assert new.fence > lease.fence


async def test_of_two_owners_after_a_lost_write_the_higher_fence_stays(v: Virtual) -> None:
    old = await v.granted()
    backup: Any = await v.client.dump(v.keys.lease("r1"))
    await v.advance(TTL + GRACE)
    new = await v.granted(node="node-b")
    await v.client.restore(v.keys.lease("r1"), 0, backup, replace=True)
    (renewed,) = await v.renew(old)
    assert renewed.status is RenewStatus.OK, "the lost write: the old owner is believed"
    (renewed,) = await v.renew(new, node="node-b")
    assert renewed.status is RenewStatus.REASSERTED
    (renewed,) = await v.renew(old)
    assert (renewed.status, renewed.fence) == (RenewStatus.TAKEN, new.fence)


async def test_a_holder_that_lost_its_fence_with_its_daemon_learns_it(v: Virtual) -> None:
    lease = await v.granted()
    unknown = type(lease)(lease.run_id, lease.kind, lease.token, 0, lease.slot)
    (renewed,) = await v.renew(unknown)
    assert (renewed.status, renewed.fence) == (RenewStatus.OK, lease.fence)
    await wipe(v)
    (renewed,) = await v.renew(unknown)
    assert renewed.status is RenewStatus.REASSERTED
    assert renewed.fence >= START_MS


# --- steal ----------------------------------------------------------------------------------------
async def test_a_steal_needs_the_fence_that_the_operator_saw(v: Virtual) -> None:
    lease = await v.granted()
    store = v.store("node-c")
    missed = await store.steal("r1", lease.fence - 1, after_seconds=40, target="", why="test")
    assert (missed.status, missed.fence) == (StealStatus.CHANGED, lease.fence)
    (renewed,) = await v.renew(lease)
    assert renewed.status is RenewStatus.OK
    absent = await store.steal("r-none", 1, after_seconds=40, target="", why="test")
    assert absent.status is StealStatus.MISSING
    await v.release(lease)
    gone = await store.steal("r1", lease.fence, after_seconds=40, target="", why="test")
    assert gone.status is StealStatus.RELEASED


async def test_a_freed_lease_stops_its_holder_and_is_claimable_after_its_time(
    v: Virtual,
) -> None:
    lease = await v.granted()
    for _ in range(2):
        freed = await v.store().steal("r1", lease.fence, after_seconds=40, target="", why="test")
        assert freed.status is StealStatus.FREED
    (renewed,) = await v.renew(lease)
    assert renewed.status is RenewStatus.FREED
    await v.advance(40 - TICK)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Conflict)
    assert answer.freed
    await v.advance(TICK)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Granted)


async def test_a_freed_lease_is_kept_for_its_target(v: Virtual) -> None:
    lease = await v.granted()
    await v.store().steal("r1", lease.fence, after_seconds=40, target="node-c", why="test")
    await v.release(lease, Outcome.INTERRUPTED)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, NotYet)
    assert answer.wait_seconds == 40 + TTL
    assert isinstance((await v.acquire(node="node-c"))[1], Granted)


async def test_a_target_that_never_comes_blocks_nobody_for_long(v: Virtual) -> None:
    lease = await v.granted()
    await v.store().steal("r1", lease.fence, after_seconds=40, target="node-c", why="test")
    await v.release(lease, Outcome.INTERRUPTED)
    await v.advance(40 + TTL)
    assert isinstance((await v.acquire(node="node-b"))[1], Granted)


# --- clock jumps ----------------------------------------------------------------------------------
async def test_after_the_clock_went_back_a_dead_holder_blocks_for_ttl_and_grace_at_most(
    v: Virtual,
) -> None:
    await v.granted()
    await v.advance(-3600)
    _, answer = await v.acquire(node="node-b")
    assert isinstance(answer, Conflict)
    assert answer.claimable_in_seconds <= TTL + GRACE
    assert answer.age_seconds > 1e6, "a lease of unknown age is no race"
    await v.advance(TTL + GRACE)
    assert isinstance((await v.acquire(node="node-b"))[1], Granted)


async def test_after_the_clock_went_back_settling_lasts_ttl_and_grace_at_most(
    v: Virtual,
) -> None:
    await v.client.set(v.keys.epoch, v.now_ms)
    await v.advance(-3600)
    _, answer = await v.acquire()
    assert isinstance(answer, NotYet)
    await v.advance(TTL + GRACE)
    assert isinstance((await v.acquire())[1], Granted)


async def test_a_jump_of_40_seconds_takes_no_lease_from_a_holder_that_renews(v: Virtual) -> None:
    lease = await v.granted()
    await v.advance(10 + 40)
    assert isinstance((await v.acquire(node="node-b"))[1], Conflict)
    (renewed,) = await v.renew(lease)
    assert renewed.status is RenewStatus.OK


# --- the rest -------------------------------------------------------------------------------------
async def test_the_list_shows_what_stands_in_the_order_of_deadlines(v: Virtual) -> None:
    await v.granted("r-old")
    await v.advance(TTL + GRACE)
    await v.granted("r-mid", node="node-b")
    await v.advance(TTL)
    released = await v.granted("r-gone")
    await v.release(released)
    held = await v.granted("r-new")
    freed = await v.granted("r-freed")
    await v.store().steal("r-freed", freed.fence, after_seconds=40, target="", why="test")
    views = await v.store().list_leases()
    assert [(view.run_id, view.owner, view.state) for view in views] == [
        ("r-old", "node-a", "claimable"),
        ("r-mid", "node-b", "expired"),
        ("r-freed", "node-a", "freed"),
        ("r-new", "node-a", "held"),
    ]
    assert views[3].fence == held.fence
    assert views[3].expires_in_seconds == TTL


async def test_the_list_has_pages(v: Virtual) -> None:
    store = v.store()
    await v.client.zadd(v.keys.index, {f"r{number}": v.now_ms for number in range(1100)})
    for number in (0, 600, 1099):
        await v.granted(f"r{number}")
    assert {view.run_id for view in await store.list_leases()} == {"r0", "r600", "r1099"}


async def test_no_lease_is_missed_in_the_list_when_renewals_go_on_between_its_pages(
    v: Virtual,
) -> None:
    leases = [await v.granted(f"r{number:03}") for number in range(250)]
    store = v.store()
    listed: set[str] = set()
    async for page in store._pages(counted=False):
        listed |= {view.run_id for view in read_list(page)}
        await v.advance(1)
        await v.renew(*leases[:60], *leases[90:120])
    assert listed == {lease.run_id for lease in leases}
    assert (await store.count_leases()) == {"node-a": 250}


async def test_the_event_stream_is_bounded(v: Virtual) -> None:
    pipe = v.client.pipeline(transaction=False)
    for number in range(3000):
        pipe.xadd(v.keys.stream, {"n": number})
    await pipe.execute()
    await v.granted()
    assert await v.client.xlen(v.keys.stream) <= 1200


async def test_scripts_that_the_server_forgot_are_sent_again(v: Virtual) -> None:
    lease = await v.granted()
    await v.client.script_flush()
    (renewed,) = await v.renew(lease)
    assert renewed.status is RenewStatus.OK
    await v.client.script_flush()
    assert await v.release(lease) is ReleaseStatus.RELEASED
    await v.client.script_flush()
    assert await v.store().list_leases() == []


async def test_a_node_that_renews_is_in_the_node_registry(v: Virtual) -> None:
    await v.renew(node="node-z")
    assert await v.client.zscore(v.keys.nodes, "node-z") == v.now_ms
    assert await v.client.hget(v.keys.node("node-z"), "seen") == str(v.now_ms)
    await v.advance(2 * 86_400)
    await v.renew(node="node-a")
    assert await v.client.zscore(v.keys.nodes, "node-z") is None


async def test_every_key_bears_the_version_and_the_hash_tag_of_its_sweep(v: Virtual) -> None:
    lease = await v.granted()
    await v.renew(lease)
    await v.store().steal("r1", lease.fence, after_seconds=40, target="node-c", why="test")
    await v.release(lease, Outcome.CRASHED)
    keys = [key async for key in v.client.scan_iter(match=f"*{{{v.sweep}}}*", count=1000)]
    named = {key for key in keys if not key.startswith("clock:")}
    prefix = f"wandb-coordinator:1:{{{v.sweep}}}:"
    assert len(named) >= 7
    assert all(key.startswith(prefix) for key in named)


@pytest.mark.parametrize("name", NAMES)
async def test_each_script_opens_with_its_contract(name: str) -> None:
    first, second, *rest = lua_source(name).splitlines()
    assert first.startswith("#!lua")
    assert second.startswith("-- Contract: ")
    header = [line for line in rest if line.startswith("--")]
    for part in ("-- KEYS: ", "-- ARGV: ", "-- Answer: "):
        assert any(line.startswith(part) for line in header), (name, part)


async def test_a_full_redis_still_renews_and_releases_and_grants_nothing_new(
    tmp_path: Path, sweep: SweepPath
) -> None:
    async with redis_server(tmp_path) as server, server.client() as client:
        v = await Virtual(client, sweep).settled()
        lease = await v.granted()
        await client.config_set("maxmemory", "1mb")
        with pytest.raises(OutOfMemoryError):
            await v.acquire("r2")
        (renewed,) = await v.renew(lease)
        assert renewed.status is RenewStatus.OK
        assert await v.release(lease, Outcome.CRASHED) is ReleaseStatus.RELEASED
        await client.config_set("maxmemory", "0")
        assert isinstance((await v.acquire("r2"))[1], Granted)
