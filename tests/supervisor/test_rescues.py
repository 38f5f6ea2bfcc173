"""Runs to be trained again while Redis comes and goes."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from coordinator.core.model import CommandKind, Outcome
from coordinator.core.rescue import Policy
from coordinator.errors import PeerError
from coordinator.leases import NoLeases, OfferStatus
from coordinator.supervisor.rescues import Rescues
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
async def pair() -> AsyncIterator[tuple[Rescues, Redis]]:
    redis = Redis()
    async with ClientSession() as session:
        account = Account(Login(NOBODY, "k" * 40, key_from_environment=True), session)
        yield Rescues(POLICY, redis, account, SWEEP, patience_seconds=1.0), redis


async def test_a_run_is_owed_until_redis_takes_it_and_offered_once_then(
    pair: tuple[Rescues, Redis],
) -> None:
    rescues, redis = pair
    redis.answers = False
    with capture_logs() as events:
        await rescues.consider(command("r1"), Outcome.CRASHED)
        assert await rescues.waiting(3600.0), "an owed run is work to wait for"
        redis.answers = True
        await rescues.settle()
        await rescues.settle()
    assert [event["event"] for event in events] == ["rescue_delayed", "rescue_queued"]
    assert redis.asked == ["r1", "r1"]
    assert rescues.take_owed() == []


async def test_a_redis_that_is_out_of_sight_is_not_asked_and_the_next_daemon_gets_the_run(
    pair: tuple[Rescues, Redis],
) -> None:
    rescues, redis = pair
    redis.seen = False
    await rescues.consider(command("r1"), Outcome.CRASHED)
    await rescues.consider(command("r2"), Outcome.FAILED)
    assert not await rescues.hand_over(command("r3"))
    assert redis.asked == []
    (owed,) = rescues.take_owed()
    assert (owed.run_id, owed.kind, owed.raw["type"]) == ("r1", CommandKind.RESUME, "resume")
