"""What operators see and do: the scripts on a virtual clock, then keepers on a real Redis."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.lease import Conflict
from coordinator.core.model import Outcome, SweepPath
from coordinator.errors import PeerError
from coordinator.leases import DropReason, FreeStatus, HolderState, NodeFacts, StealStatus
from coordinator.leases.answers import Granted, RenewStatus
from coordinator.leases.fitness import MINIMAL_ACL
from tests.leases.nodes import FAST, claim, node, resume, until
from tests.leases.test_connection import acl
from tests.leases.virtual import GRACE, SETTINGS, TTL, Virtual
from tests.support.redis import RedisServer, redis_server

pytestmark = pytest.mark.anyio

CALM = replace(FAST, ttl_seconds=6.0, renew_seconds=0.5, timeout_seconds=2.0)
"""A loaded machine does not make a holder look silent for three seconds."""
SILENT = SETTINGS.silent_after_seconds
TICK = 0.001


@pytest.fixture
async def v(redis: RedisServer, sweep: SweepPath) -> AsyncIterator[Virtual]:
    async with redis.client() as client:
        yield await Virtual(client, sweep).settled()


# --- release by an operator -----------------------------------------------------------------------
@pytest.mark.parametrize("passed", [0.0, SILENT - TICK, SILENT])
async def test_a_holder_that_is_heard_of_keeps_its_lease(v: Virtual, passed: float) -> None:
    lease = await v.granted()
    await v.advance(passed)
    freed = await v.store("node-b").free("r1", lease.fence, SILENT, force=False)
    assert (freed.status, freed.holder, freed.fence) == (FreeStatus.ALIVE, "node-a", lease.fence)
    assert freed.silent_seconds == passed
    (renewed,) = await v.renew(lease)
    assert renewed.status is RenewStatus.OK


async def test_the_lease_of_a_silent_holder_is_free_at_once_long_before_its_deadline(
    v: Virtual,
) -> None:
    lease = await v.granted()
    await v.advance(SILENT + TICK)
    _, before = await v.acquire(node="node-b")
    assert isinstance(before, Conflict)
    freed = await v.store("node-b").free("r1", lease.fence, SILENT, force=False)
    assert freed.status is FreeStatus.FREED
    assert await v.store().list_leases() == []
    assert await v.client.zscore(v.keys.index, "r1") is None
    _, after = await v.acquire(node="node-b")
    assert isinstance(after, Granted)
    assert after.fence > lease.fence


async def test_a_holder_that_comes_back_after_a_release_is_told_to_stop_or_that_it_is_fenced(
    v: Virtual,
) -> None:
    lease = await v.granted()
    await v.store().free("r1", lease.fence, SILENT, force=True)
    (told,) = await v.renew(lease)
    assert told.status is RenewStatus.RELEASED
    await v.granted(node="node-b")
    (told,) = await v.renew(lease)
    assert (told.status, told.holder) == (RenewStatus.TAKEN, "node-b")


async def test_a_release_needs_the_fence_that_the_operator_saw(v: Virtual) -> None:
    lease = await v.granted()
    await v.advance(TTL)
    store = v.store()
    for fence in (lease.fence - 1, lease.fence + 1):
        changed = await store.free("r1", fence, SILENT, force=True)
        assert (changed.status, changed.fence) == (FreeStatus.CHANGED, lease.fence)
    absent = await store.free("r-none", 1, SILENT, force=True)
    assert absent.status is FreeStatus.MISSING
    assert [view.run_id for view in await store.list_leases()] == ["r1"]


async def test_a_release_twice_says_so_and_changes_nothing(v: Virtual) -> None:
    lease = await v.granted()
    statuses = [
        (await v.store().free("r1", lease.fence, SILENT, force=True)).status for _ in range(2)
    ]
    assert statuses == [FreeStatus.FREED, FreeStatus.RELEASED]


async def test_a_stolen_lease_is_not_released_while_its_node_still_reports_itself(
    v: Virtual,
) -> None:
    lease = await v.granted()
    await v.store().steal("r1", lease.fence, after_seconds=900, target="", why="test")
    await v.advance(SILENT + TICK)
    await v.renew(lease)
    assert (await v.store().free("r1", lease.fence, SILENT, force=False)).status is FreeStatus.ALIVE
    await v.advance(SILENT + TICK)
    assert (await v.store().free("r1", lease.fence, SILENT, force=False)).status is FreeStatus.FREED


@pytest.mark.parametrize("how", ["released", "stolen"])
async def test_a_run_that_was_taken_from_a_dead_holder_is_rescued(v: Virtual, how: str) -> None:
    lease = await v.granted()
    store = v.store("node-b")
    if how == "stolen":
        await store.steal("r1", lease.fence, after_seconds=1, target="", why="test")
    else:
        await store.free("r1", lease.fence, SILENT, force=True)
    await v.advance(2 * (TTL + GRACE))
    _, rescue = await store.take()
    assert rescue is not None
    assert (rescue.run_id, rescue.program, rescue.args) == ("r1", "train.py", {"a": 1})
    assert rescue.lost, "the server is asked first"
    assert rescue.silent_seconds is not None
    assert 0 < rescue.silent_seconds < 3600
    await v.granted(node="node-b")
    assert (await store.take(count_only=True))[0].rescues == 0


async def test_a_run_that_finished_is_not_rescued_when_its_lease_is_released(v: Virtual) -> None:
    lease = await v.granted()
    await v.client.hset(v.keys.run("r1"), "outcome", "finished")
    await v.store().free("r1", lease.fence, SILENT, force=True)
    assert await v.client.zscore(v.keys.rescue, "r1") is None


# --- show -----------------------------------------------------------------------------------------
async def test_a_run_without_a_lease_is_unknown(v: Virtual) -> None:
    assert await v.store().show("r-none") is None


async def test_show_has_the_lease_as_listed_and_when_it_can_be_claimed(v: Virtual) -> None:
    lease = await v.granted()
    await v.advance(20)
    await v.renew(lease)
    await v.advance(7)
    (listed,) = await v.store().list_leases()
    shown = await v.store("node-b").show("r1")
    assert shown is not None
    for name in listed.__struct_fields__:
        assert getattr(shown, name) == getattr(listed, name)
    assert (shown.fence, shown.why, shown.silent_seconds) == (lease.fence, "claim", 7.0)
    assert shown.claimable_in_seconds == TTL + GRACE - 7
    assert (shown.attempts, shown.outcomes, shown.last_outcome) == (0, {}, None)
    assert (shown.handoff_to, shown.handoff_seconds, shown.closing) == (None, 0.0, False)
    assert (shown.program, shown.args) == ("train.py", {"a": 1})


async def test_show_tells_what_the_run_has_been_through(v: Virtual) -> None:
    for outcome in (Outcome.PREEMPTED, Outcome.PREEMPTED, Outcome.CRASHED):
        await v.release(await v.granted(), outcome)
    lease = await v.granted(node="node-c")
    token, _ = await v.acquire(node="node-b")
    dropped = type(lease)("r1", lease.kind, token, 0, 0)
    await v.store("node-b").release(dropped, None, DropReason.RACE)
    await v.store().steal("r1", lease.fence, after_seconds=40, target="node-d", why="operator")
    await v.store("node-c").closing(lease)
    shown = await v.store().show("r1")
    assert shown is not None
    assert (shown.attempts, shown.outcomes) == (3, {"preempted": 2, "crashed": 1})
    assert (shown.last_outcome, shown.last_outcome_node) == (Outcome.CRASHED, "node-a")
    assert shown.last_outcome_at == "2023-11-14T22:13:20.000+00:00"
    assert (shown.drops, shown.last_drop, shown.last_drop_node) == (1, "race", "node-b")
    assert (shown.owner, shown.state, shown.why) == ("node-c", "freed", "operator")
    assert (shown.handoff_to, shown.handoff_seconds) == ("node-d", 40 + TTL)


async def test_show_knows_a_released_lease_for_a_day(v: Virtual) -> None:
    await v.release(await v.granted(), Outcome.FINISHED)
    shown = await v.store().show("r1")
    assert shown is not None
    assert (shown.state, shown.last_outcome) == ("released", Outcome.FINISHED)


# --- nodes ----------------------------------------------------------------------------------------
async def test_nodes_tell_of_themselves_and_the_latest_comes_first(v: Virtual) -> None:
    a, b = v.store("node-a"), v.store("node-b")
    a.facts = lambda: NodeFacts("1.2", "running", 8, 7, 4711)
    await a.renew_many([], 3)
    await v.advance(5)
    await b.renew_many([], 0)
    latest, earlier = await v.store().nodes()
    assert (latest.name, latest.silent_seconds, latest.facts) == ("node-b", 0.0, NodeFacts())
    assert (earlier.name, earlier.silent_seconds) == ("node-a", 5.0)
    assert earlier.facts == NodeFacts("1.2", "running", 8, 7, 4711, 3)
    assert earlier.seen_at == "2023-11-14T22:13:20.000+00:00"


async def test_facts_that_nobody_understands_hide_no_node(v: Virtual) -> None:
    for name, facts in (
        ("odd", "{"),
        ("new", '{"version": "9", "moon": 1}'),
        ("bad", '{"pid":"x"}'),
    ):
        await v.renew(node=name)
        await v.client.hset(v.keys.node(name), "facts", facts)
    await v.client.zadd(v.keys.nodes, {"gone": v.now_ms})
    facts_of = {seen.name: seen.facts for seen in await v.store().nodes()}
    assert facts_of == {
        "odd": NodeFacts(), "new": NodeFacts("9"), "bad": NodeFacts(), "gone": NodeFacts(),
    }  # fmt: skip


# --- keepers --------------------------------------------------------------------------------------
async def test_a_node_sees_all_nodes_with_what_they_say_and_hold(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(redis.url, sweep, tmp_path, "node-b", CALM) as b,
        node(redis.url, sweep, tmp_path, "node-a", CALM) as a,
    ):
        a.keeper.describe(lambda: NodeFacts("1.2", "running", 8, 1, 4711))
        await a.held(claim("r1"))
        assert await a.keeper._renewer.round()
        first, second = await b.keeper.operations.nodes()
        assert (first.node, first.version, first.slots, first.busy) == ("node-a", "1.2", 8, 1)
        assert (first.alive, first.leases_held, first.sweep) == (True, 1, str(sweep))
        assert (second.node, second.version, second.leases_held) == ("node-b", None, 0)


async def test_a_node_that_is_gone_is_silent_and_its_lease_can_be_released_from_another(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path, "node-b", CALM) as b:
        async with node(redis.url, sweep, tmp_path, "node-a", CALM) as a:
            lease = await a.held(claim("r1"))
            early = await b.keeper.operations.release("r1", lease.fence, force=False)
            assert early.status is FreeStatus.ALIVE
        freed = early
        while freed.status is FreeStatus.ALIVE:
            freed = await b.keeper.operations.release("r1", lease.fence, force=False)
        assert freed.status is FreeStatus.FREED
        assert freed.silent_seconds > CALM.silent_after_seconds
        gone, alive = await b.keeper.operations.nodes()
        assert (gone.node, gone.alive, gone.leases_held) == ("node-a", False, 0)
        assert (alive.node, alive.alive) == ("node-b", True)
        assert (await b.held(resume("r1"))).fence > lease.fence


async def test_a_forced_release_stops_a_living_holder_once(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(redis.url, sweep, tmp_path, "node-a", CALM) as a,
        node(redis.url, sweep, tmp_path, "node-b", CALM) as b,
    ):
        lease = await a.held(claim("r1"))
        await b.keeper.operations.release("r1", lease.fence, force=True)
        await until(lambda: a.stopped != [])
        for _ in range(3):
            await a.keeper._renewer.round()
        assert a.stopped == [(lease, HolderState.FREED)]
        assert a.fenced == []


async def test_a_redis_that_does_not_answer_is_a_peers_fault(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(f"unix://{tmp_path}/none", sweep, tmp_path, started=False) as a:
        operations = a.keeper.operations
        for ask in (
            operations.nodes(),
            operations.show("r1"),
            operations.steal("r1", 1),
            operations.release("r1", 1, force=True),
        ):
            with pytest.raises(PeerError, match="Redis: "):
                await ask


async def test_a_steal_is_refused_to_one_who_has_not_seen_the_present_holder(
    redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(redis.url, sweep, tmp_path, "node-a", CALM) as a:
        lease = await a.held(claim("r1"))
        stolen = await a.keeper.operations.steal("r1", lease.fence - 1)
        assert (stolen.status, stolen.fence) == (StealStatus.CHANGED, lease.fence)
        assert await a.keeper._renewer.round()
        assert a.stopped == []


async def test_the_minimal_rights_suffice_for_an_operator(sweep: SweepPath, tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server, server.client() as admin:
        await acl(admin, "coordinator", *MINIMAL_ACL)
        url = f"unix://coordinator:s3cret@{server.socket}"
        async with node(url, sweep, tmp_path, "node-a", CALM) as a:
            operations = a.keeper.operations
            first = await a.held(claim("r1"))
            second = await a.held(claim("r2"))
            assert await operations.show("r1") is not None
            assert [view.leases_held for view in await operations.nodes()] == [2]
            assert (await operations.steal("r1", first.fence)).status is StealStatus.FREED
            freed = await operations.release("r2", second.fence, force=True)
            assert freed.status is FreeStatus.FREED
