"""Guards of one node, and two nodes that share the sweep's breaker on a real Redis."""

import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from coordinator.config.model import Breaker as BreakerConfig
from coordinator.config.model import Config, Pacing
from coordinator.core.breaker import BreakerState, Life
from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.daemon.guards import _breaker_settings, _pace_settings
from coordinator.leases import LeaseKeeper
from coordinator.supervisor import breakers as module
from coordinator.supervisor.breakers import Breakers, Stayed
from coordinator.supervisor.level import Level
from coordinator.supervisor.pacing import Pacer
from coordinator.supervisor.premises import Premises
from coordinator.supervisor.upstream import Upstream
from coordinator.wandb_account.login import NoApiKeyError
from tests.leases.nodes import FAST, node
from tests.supervisor.stage import guards, key_is_good
from tests.support.redis import redis_server

pytestmark = pytest.mark.anyio


def stayed(slot: int, run_id: str, outcome: Outcome = Outcome.FAILED, lived: float = 0.5) -> Stayed:
    return Stayed(run_id, slot, CommandKind.RUN, Life(outcome, lived, True, None, ordered=False))


async def train(breakers: Breakers, slot: int, run_id: str, outcome: Outcome) -> None:
    """One claim and its ending."""
    assert await breakers.enter(slot)
    await breakers.leave(slot, trained=True)
    await breakers.ended(stayed(slot, run_id, outcome), excused=False)


async def fail(breakers: Breakers, count: int, slots: int = 2) -> None:
    for number in range(count):
        await train(breakers, number % slots, f"r{number}", Outcome.FAILED)


# --- breakers -------------------------------------------------------------------------------------
async def test_a_bad_node_opens_after_the_configured_number_and_no_slot_claims(
    tmp_path: Path,
) -> None:
    breakers = guards(tmp_path, failures=5).breakers
    await fail(breakers, 4)
    assert breakers.admits(0)
    await fail(breakers, 1)
    assert not breakers.admits(0)
    assert not await breakers.enter(1)
    assert [view.scope for view in breakers.views()] == ["node"]


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_slot_is_not_blamed_where_its_whole_node_is_bad(tmp_path: Path, slots: int) -> None:
    breakers = guards(tmp_path, failures=9, slot_failures=2).breakers
    await fail(breakers, 8, slots)
    assert breakers.views() == []


async def test_a_bad_slot_among_sound_ones_opens_alone(tmp_path: Path) -> None:
    breakers = guards(tmp_path, slot_failures=3).breakers
    for number in range(3):
        await train(breakers, 0, f"sound{number}", Outcome.FINISHED)
        await train(breakers, 1, f"bad{number}", Outcome.FAILED)
    assert breakers.admits(0)
    assert not breakers.admits(1)
    (view,) = breakers.views()
    assert (view.scope, view.slot, view.failures) == ("slot", 1, 3)


async def test_a_half_open_node_lets_one_claim_through_and_waits_for_its_verdict(
    tmp_path: Path,
) -> None:
    breakers = guards(tmp_path, failures=2, cooldown_seconds=0.01).breakers
    await fail(breakers, 2)
    await opened_again(breakers)
    assert await breakers.enter(0)
    assert breakers.admits(0), "the probe goes on"
    assert not breakers.admits(1)
    await breakers.leave(0, trained=True)
    assert not breakers.admits(0), "no second probe before the verdict on the first"
    await breakers.ended(stayed(0, "p", Outcome.FINISHED), excused=False)
    assert breakers.admits(0)
    assert breakers.admits(1)


async def test_a_probe_that_came_to_nothing_leaves_its_place_to_others(tmp_path: Path) -> None:
    breakers = guards(tmp_path, failures=2, cooldown_seconds=0.01).breakers
    await fail(breakers, 2)
    await opened_again(breakers)
    assert await breakers.enter(0)
    await breakers.leave(0, trained=False)
    assert await breakers.enter(1)


async def opened_again(breakers: Breakers) -> None:
    """Wait for the end of the cool-down."""
    async with anyio.create_task_group() as group:
        group.start_soon(breakers.run, list)
        with anyio.fail_after(20):
            while breakers.node.state is not BreakerState.HALF_OPEN:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()


async def test_failures_that_are_excused_or_came_late_do_not_count(tmp_path: Path) -> None:
    breakers = guards(tmp_path, failures=2).breakers
    for number in range(4):
        await breakers.ended(stayed(0, f"r{number}"), excused=True)
        life = Life(Outcome.FAILED, 60.0, True, "FAILED", ordered=False)
        await breakers.ended(Stayed(f"l{number}", 0, CommandKind.RUN, life), excused=False)
    assert breakers.views() == []


async def test_agents_that_end_early_and_runs_that_none_starts_open_the_node(
    tmp_path: Path,
) -> None:
    breakers = guards(tmp_path, failures=3).breakers
    breakers.agent_failed("no such file")
    breakers.agent_failed("no such file")
    await breakers.start_failed(0, "r1")
    (view,) = breakers.views()
    assert view.reason == "no agent started run r1"


async def test_an_operator_closes_them_and_off_means_off(tmp_path: Path) -> None:
    breakers = guards(tmp_path, failures=2).breakers
    await fail(breakers, 2)
    assert breakers.reset() == 1
    assert breakers.admits(0)
    off = guards(tmp_path, failures=1, enabled=False).breakers
    await fail(off, 5)
    assert off.admits(0)


# --- the sweep ------------------------------------------------------------------------------------
@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[LeaseKeeper, LeaseKeeper]]:
    sweep = SweepPath("e", "p", "s")
    async with (
        redis_server(tmp_path) as redis,
        node(redis.url, sweep, tmp_path, "a", FAST) as a,
        node(redis.url, sweep, tmp_path, "b", FAST) as b,
    ):
        yield a.keeper, b.keeper


def of(keeper: LeaseKeeper, name: str, **keys: float) -> Breakers:
    settings = _breaker_settings(Config(breaker=BreakerConfig(**keys)))  # type: ignore[arg-type]
    return Breakers(settings, name, keeper.shared, Level().bump)


async def test_nodes_that_all_fail_open_the_breaker_of_the_sweep_with_one_probe_for_all(
    pair: tuple[LeaseKeeper, LeaseKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    keys = {"failures": 4, "sweep_failures": 6, "cooldown_seconds": 0.2}
    a, b = of(pair[0], "a", **keys), of(pair[1], "b", **keys)
    await fail(a, 3)
    await fail(b, 2)
    assert a.admits(0)
    assert b.admits(0)
    await fail(b, 1)
    assert [view.scope for view in b.views()] == ["sweep"]
    assert not b.admits(0)

    async with anyio.create_task_group() as group:
        group.start_soon(a.run, list)
        group.start_soon(b.run, list)
        with anyio.fail_after(30):
            while {a.sweep.state, b.sweep.state} != {BreakerState.HALF_OPEN}:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        group.cancel_scope.cancel()
    assert await a.enter(0)
    assert not await a.enter(1)
    assert not await b.enter(0)
    await a.leave(0, trained=True)
    await a.ended(stayed(0, "p", Outcome.FINISHED), excused=False)
    assert a.views() == []
    assert await b.reset_sweep() is False
    assert b.admits(0)


# --- pace -----------------------------------------------------------------------------------------
async def test_starts_and_claims_beyond_the_burst_wait(
    pair: tuple[LeaseKeeper, LeaseKeeper],
) -> None:
    pacing = Pacing(agent_starts_per_second=1, agent_start_burst=3, claims_per_second=1,
                    claim_burst=2, sweep_claims_per_second=1, sweep_claim_burst=3)  # fmt: skip
    a, b = (Pacer(_pace_settings(Config(pacing=pacing)), keeper.shared) for keeper in pair)
    assert a.starts(5) == 3
    assert a.starts(5) == 0
    assert [await a.claim_wait_seconds() for _ in range(2)] == [0.0, 0.0]
    assert 0.0 < await a.claim_wait_seconds() <= 1.0, "its own burst is used up"
    assert await b.claim_wait_seconds() == 0.0
    assert 0.0 < await b.claim_wait_seconds() <= 1.0, "that of the sweep is used up"


def test_ordinary_use_never_waits_for_its_pace() -> None:
    settings = _pace_settings(Config())
    assert settings.claims.took(16, 100.0).wait_seconds(100.0) == 0.0
    assert settings.starts.ready(100.0) >= 8 + 1


# --- premises -------------------------------------------------------------------------------------
def premises(
    folder: Path, try_key: Callable[..., object] = key_is_good, least: int = 0
) -> Premises:
    return Premises([folder], least, try_key, lambda: None)  # type: ignore[arg-type]


async def test_a_write_that_fails_for_want_of_room_holds_claims_until_one_succeeds(
    tmp_path: Path,
) -> None:
    ours = premises(tmp_path)
    trial = tmp_path / "trial"
    trial.symlink_to("/dev/full")  # a real ENOSPC
    with pytest.raises(OSError, match="No space left") as caught:
        trial.write_bytes(b"x")
    assert ours.noticed(caught.value)
    assert "no space left" in ours.trouble
    assert "no space left" in await ours.look()
    assert await ours.look() == "", "the trial was removed, so the next one is a file"


def test_other_errors_are_not_for_want_of_room(tmp_path: Path) -> None:
    ours = premises(tmp_path)
    assert not ours.noticed(OSError(errno.EACCES, "no"))
    assert ours.trouble == ""


async def test_too_little_room_holds_claims(tmp_path: Path) -> None:
    assert "min_free_bytes" in await premises(tmp_path, least=10**17).look()


async def test_a_missing_key_is_looked_for_only_in_doubt_and_holds_claims_until_it_is_there(
    tmp_path: Path,
) -> None:
    missing = [True]

    async def try_key() -> None:
        if missing:
            raise NoApiKeyError("https://api.wandb.ai")

    ours = premises(tmp_path, try_key)
    assert await ours.look() == ""
    ours.doubt_key()
    assert "no W&B API key" in await ours.look()
    missing.clear()
    assert await ours.look() == ""


# --- upstream -------------------------------------------------------------------------------------
def test_many_answers_at_once_lengthen_the_back_off_once_and_a_good_one_ends_it() -> None:
    refused: list[str] = []
    ours = Upstream(lambda: refused.append("key"))
    first = ours.failed(503, "busy", None)
    for _ in range(20):
        ours.failed(503, "busy", None)
    assert ours.failures == 1
    assert 0.4 < ours.wait_seconds <= 2.0
    assert first >= 0.5
    assert ours.failed(429, "slow down", 30.0) >= 29.0
    assert ours.wait_seconds > 29.0
    assert ours.trouble == "HTTP 429 slow down"
    ours.answered()
    assert ours.wait_seconds > 29.0, "the answer to somebody else does not end the pause"
    ours._until = 0.0
    ours.answered()
    assert (ours.wait_seconds, ours.trouble, refused) == (0.0, "", [])
    ours.failed(401, "no", None)
    assert refused == ["key"]


async def test_a_training_that_has_lived_long_enough_closes_the_breaker_without_ending(
    tmp_path: Path,
) -> None:
    breakers = guards(tmp_path, failures=2, cooldown_seconds=0.01, sound_seconds=60).breakers
    await fail(breakers, 2)
    await opened_again(breakers)
    assert await breakers.enter(0)
    async with anyio.create_task_group() as group:
        group.start_soon(breakers.run, lambda: [(1, 99.0), (0, 61.0)])
        with anyio.fail_after(20):
            while breakers.node.state is not BreakerState.CLOSED:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert breakers.admits(1)
