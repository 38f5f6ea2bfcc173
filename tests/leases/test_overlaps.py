"""Two nodes, a racy server and a Redis that loses everything: does a run ever train twice at once?

The judge sees hold intervals on the one monotonic clock of this machine. It must bite: the same
scenario without the settling after a wipe, and without leases at all, has to show overlaps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import Outcome, SweepPath
from coordinator.leases import Lease, LeaseKeeper, Leases, NoLeases
from coordinator.leases.clock import boottime_seconds
from coordinator.leases.keys import Keys
from tests.leases.nodes import FAST, claim, resume, until
from tests.support.redis import RedisServer, redis_server

pytestmark = pytest.mark.anyio

RUNS = 8
HASTY = replace(
    FAST, ttl_seconds=8.5, renew_seconds=2.5, race_window_seconds=0.0, handoff_seconds=0.0
)
"""A conflict with a living holder ends at once; renewals leave time for damage between them."""


@dataclass
class Judge:
    """Who held which run when."""

    intervals: dict[str, list[list[float]]] = field(default_factory=dict)
    open: dict[str, list[float]] = field(default_factory=dict)

    def begin(self, lease: Lease) -> None:
        interval = [anyio.current_time(), float("inf")]
        self.open[lease.token] = interval
        self.intervals.setdefault(lease.run_id, []).append(interval)

    async def end(self, lease: Lease) -> None:
        interval = self.open.pop(lease.token, None)
        if interval is not None:
            interval[1] = anyio.current_time()

    def overlaps(self) -> int:
        pairs = (pair for held in self.intervals.values() for pair in combinations(held, 2))
        return sum(a[0] < b[1] and b[0] < a[1] for a, b in pairs)


def test_the_judge_counts_overlaps_and_nothing_else() -> None:
    judge = Judge({"r1": [[0.0, 1.0], [1.0, 2.0]], "r2": [[0.5, 0.6]]})
    assert judge.overlaps() == 0
    judge.intervals["r2"] += [[0.55, 0.7], [0.0, 9.0]]
    assert judge.overlaps() == 3


async def wiped_and_handed_out_again(
    server: RedisServer, sweep: SweepPath, judge: Judge, first: Leases, second: Leases
) -> None:
    """`first` holds the runs; Redis loses everything; the server hands them to `second` too."""
    async with server.client() as client, anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await tasks.start(second.run)
        await client.set(Keys(sweep).epoch, 1)
        held = []
        for number in range(RUNS):
            lease = await first.acquire(claim(f"r{number}"))
            assert isinstance(lease, Lease)
            judge.begin(lease)
            held.append(lease)
        if isinstance(first, LeaseKeeper):
            kicked = boottime_seconds()
            first._renewer.kick()
            await until(lambda: boottime_seconds() - first.health().since_seconds > kicked)
        await client.flushall()

        async def claim_again(number: int) -> None:
            lease = await second.acquire(resume(f"r{number}"))
            if isinstance(lease, Lease):
                judge.begin(lease)

        async with anyio.create_task_group() as claims:
            for number in range(RUNS):
                claims.start_soon(claim_again, number)
        for lease in held:
            await judge.end(lease)
            await first.release(lease.token, Outcome.PREEMPTED)
        tasks.cancel_scope.cancel()


def keepers(
    server: RedisServer, sweep: SweepPath, directory: Path, judge: Judge, *, settling: bool
) -> tuple[Leases, Leases]:
    """Two nodes; without `settling` a wipe is followed by grants at once."""

    def keeper(name: str) -> LeaseKeeper:
        return LeaseKeeper(
            server.url, sweep, name, HASTY, directory / name, judge.end, shared=settling
        )

    return keeper("node-a"), keeper("node-b")


async def overlaps_after_a_wipe(
    sweep: SweepPath,
    directory: Path,
    make: Callable[[RedisServer, Judge], tuple[Leases, Leases]],
) -> int:
    judge = Judge()
    async with redis_server(directory) as server:
        with anyio.fail_after(60):
            await wiped_and_handed_out_again(server, sweep, judge, *make(server, judge))
    return judge.overlaps()


async def test_a_wipe_with_settling_makes_no_overlap(sweep: SweepPath, tmp_path: Path) -> None:
    found = await overlaps_after_a_wipe(
        sweep, tmp_path, lambda s, judge: keepers(s, sweep, tmp_path, judge, settling=True)
    )
    assert found == 0


async def test_a_wipe_without_settling_makes_overlaps(sweep: SweepPath, tmp_path: Path) -> None:
    found = await overlaps_after_a_wipe(
        sweep, tmp_path, lambda s, judge: keepers(s, sweep, tmp_path, judge, settling=False)
    )
    assert found > 0


async def test_without_leases_every_run_overlaps(sweep: SweepPath, tmp_path: Path) -> None:
    found = await overlaps_after_a_wipe(
        sweep, tmp_path, lambda *_: (NoLeases("node-a"), NoLeases("node-b"))
    )
    assert found == RUNS


async def test_hand_overs_under_a_racy_server_and_restarts_of_redis_make_no_overlap(
    sweep: SweepPath, tmp_path: Path
) -> None:
    """Runs go round between four claimants of two nodes while Redis dies and loses its data."""
    judge, rounds = Judge(), 0
    settings = replace(FAST, race_window_seconds=0.1, handoff_seconds=0.5)
    async with redis_server(tmp_path) as server:
        nodes = [
            LeaseKeeper(server.url, sweep, name, settings, tmp_path / name, judge.end)
            for name in ("node-a", "node-b")
        ]
        async with server.client() as client, anyio.create_task_group() as tasks:
            await client.set(Keys(sweep).epoch, 1)
            for keeper in nodes:
                await tasks.start(keeper.run)

            async def work(keeper: LeaseKeeper, slot: int) -> None:
                nonlocal rounds
                while True:
                    lease = await keeper.acquire(resume(f"r{rounds % 2}", slot))
                    if isinstance(lease, Lease):
                        judge.begin(lease)
                        await anyio.sleep(0.02)
                        await judge.end(lease)
                        await keeper.release(lease.token, Outcome.PREEMPTED)
                        rounds += 1

            for slot in range(4):
                tasks.start_soon(work, nodes[slot % 2], slot)
            await until(lambda: rounds >= 10, 60)
            await server.kill()
            await server.start()
            before = rounds
            await until(lambda: rounds >= before + 10, 60)
            tasks.cancel_scope.cancel()
    assert judge.overlaps() == 0
