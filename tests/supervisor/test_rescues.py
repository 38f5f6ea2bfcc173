"""Runs to be trained again while Redis comes and goes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from coordinator.core.model import CommandKind, Outcome
from coordinator.core.rescue import Policy
from coordinator.core.wire import TrainCommand
from coordinator.errors import PeerError
from coordinator.leases import NoLeases, OfferStatus
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.undelivered import Undelivered
from coordinator.wandb_account import Account, Login
from tests.supervisor.node import NOBODY
from tests.supervisor.stage import SWEEP, command

pytestmark = pytest.mark.anyio
POLICY = Policy(enabled=True, on=frozenset({Outcome.CRASHED}), max_attempts=3, backoff_seconds=1.0)


class Redis(NoLeases):
    """What leases say of a queue that is out of sight now and then."""

    def __init__(self) -> None:
        super().__init__("a")
        self.seen, self.answers = True, True
        self.asked: list[str] = []

    def admits(self, kind: CommandKind | None) -> bool:
        return self.seen

    async def offer(
        self, run_id: str, delay_seconds: float, most: int, known: tuple[str, str] = ("", "")
    ) -> OfferStatus:
        self.asked.append(run_id)
        if not self.answers:
            raise PeerError("Redis: no answer")
        return OfferStatus.QUEUED


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Rescues, Redis]]:
    redis, kept = Redis(), Undelivered(tmp_path / "undelivered.json")
    async with ClientSession() as session:
        account = Account(Login(NOBODY, "k" * 40, key_from_environment=True), session)
        yield Rescues(POLICY, redis, account, SWEEP, kept, patience_seconds=1.0), redis


async def left_to_the_next(folder: Path) -> list[TrainCommand]:
    """What a daemon finds that starts now."""
    return await Undelivered(folder / "undelivered.json").load()


async def test_a_run_is_owed_until_redis_takes_it_and_offered_once_then(
    pair: tuple[Rescues, Redis], tmp_path: Path
) -> None:
    rescues, redis = pair
    redis.answers = False
    with capture_logs() as events:
        await rescues.consider(command("r1"), Outcome.CRASHED)
        assert await rescues.waiting(3600.0), "an owed run is work to wait for"
        assert [owed.run_id for owed in await left_to_the_next(tmp_path)] == ["r1"]
        redis.answers = True
        await rescues.settle()
        await rescues.settle()
    assert [event["event"] for event in events] == ["rescue_delayed", "rescue_queued"]
    assert redis.asked == ["r1", "r1"]
    assert await left_to_the_next(tmp_path) == []


async def test_a_redis_that_is_out_of_sight_is_not_asked_and_the_next_daemon_gets_the_run(
    pair: tuple[Rescues, Redis], tmp_path: Path
) -> None:
    """However this one ends: it is killed here."""
    rescues, redis = pair
    redis.seen = False
    await rescues.consider(command("r1"), Outcome.CRASHED)
    await rescues.consider(command("r2"), Outcome.FAILED)
    assert not await rescues.hand_over(command("r3"))
    assert redis.asked == []
    (owed,) = await left_to_the_next(tmp_path)
    assert (owed.run_id, owed.kind, owed.raw["type"]) == ("r1", CommandKind.RESUME, "resume")
