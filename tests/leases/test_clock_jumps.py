"""The wall clock of a real Redis server jumps, by a library put in front of libc's."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import Dropped, DropReason, Lease
from tests.leases.nodes import FAST, NO_RACE, PATIENT, claim, node, resume, until
from tests.nemesis.clock import JumpingClock, build_clock
from tests.support.redis import RedisServer, redis_program, redis_server

pytestmark = pytest.mark.anyio

FORTY_SECONDS_ON = 40.0
AN_HOUR_BACK = -3600.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> JumpingClock:
    built = build_clock(tmp_path_factory.mktemp("clock"))
    if built is None:
        pytest.skip("no C compiler: it builds the library that makes the clock jump")
    return built


@pytest.fixture(scope="module")
async def server(
    anyio_backend: str, clock: JumpingClock, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RedisServer]:
    del anyio_backend
    program = clock.program(redis_program())
    async with redis_server(tmp_path_factory.mktemp("j"), program=program) as found:
        yield found


@pytest.mark.parametrize("jump", [FORTY_SECONDS_ON, AN_HOUR_BACK])
async def test_a_clock_that_jumps_stops_nobody_whose_run_was_not_taken(
    jump: float, clock: JumpingClock, server: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(server.url, sweep, tmp_path, "node-a", NO_RACE) as a,
        node(server.url, sweep, tmp_path, "node-b", NO_RACE) as b,
    ):
        lease = await a.held(claim("r1"))
        clock.set(clock.seconds + jump)
        jumped = anyio.current_time()
        other = await b.held(claim("r2"))
        assert anyio.current_time() - jumped < FAST.ttl_seconds + FAST.grace_seconds
        assert await a.keeper._renewer.round()
        refused = await b.keeper.acquire(resume("r1"))
        assert isinstance(refused, Dropped), "a holder that renews keeps its run"
        assert refused.reason is DropReason.HANDOFF_TIMEOUT
        assert (a.keeper.held(), b.keeper.held()) == ([lease], [other])
        assert (a.fenced, a.stopped, b.fenced, b.stopped) == ([], [], [], [])


async def test_a_clock_that_jumps_on_fences_a_holder_only_if_a_waiting_claim_took_its_run(
    clock: JumpingClock, server: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(server.url, sweep, tmp_path, "node-a", PATIENT) as a,
        node(server.url, sweep, tmp_path, "node-b", PATIENT) as b,
    ):
        lease = await a.held(claim("r1"))
        got: list[Lease | Dropped] = []

        async def waiter() -> None:
            got.append(await b.keeper.acquire(resume("r1")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter)
            await until(lambda: len(b.journalled()) == 1)
            clock.set(clock.seconds + FORTY_SECONDS_ON)
            for _ in range(2):
                await a.keeper._renewer.round()
            if not got:  # the renewal came first: nobody took it
                await a.keeper.release(lease.token, Outcome.PREEMPTED)
                await until(lambda: got != [])
                assert a.fenced == []
            else:
                await until(lambda: a.fenced == [lease])
        (taken,) = got
        assert isinstance(taken, Lease)
        assert taken.fence > lease.fence


async def test_a_clock_that_jumps_back_blocks_nobody_beyond_ttl_and_grace(
    clock: JumpingClock, server: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(server.url, sweep, tmp_path, "node-a", PATIENT) as a:
        gone = await a.held(claim("r1"))
    async with node(server.url, sweep, tmp_path, "node-b", PATIENT) as b:
        clock.set(clock.seconds + AN_HOUR_BACK)
        jumped = anyio.current_time()
        taken = await b.held(resume("r1"))
        waited = anyio.current_time() - jumped
        assert taken.fence > gone.fence
        assert waited < FAST.ttl_seconds + FAST.grace_seconds + 1.5, "1.5 s for the machine"
