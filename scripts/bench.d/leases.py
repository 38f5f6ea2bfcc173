"""How long a node takes to renew all its leases, as a multiple of ours.

Owns three ways of doing it, taken in turns on one server, so that whatever else the machine does
falls on all of them: ours (all in one script call, in chunks), ours one by one, and redis-py's own
Lock extended one by one (it has no other way). The median of each way counts.
"""

import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

from redis.asyncio import Redis

from coordinator.core.lease import LeaseSettings
from coordinator.core.model import CommandKind, SweepPath
from coordinator.leases import Claim, Lease
from coordinator.leases.answers import Granted
from coordinator.leases.keys import Keys
from coordinator.leases.scripts import Scripts
from coordinator.leases.store import CHUNK, Store
from tests.support.redis import redis_server

COUNTS = (8, 100, 1000)
FOREVER_MS = 10**15
Way = Callable[[], Awaitable[None]]


async def bench_leases(rounds: int) -> None:
    """Measure and print the table."""
    print("renewing all leases of a node; ours in one round trip = 1\n")
    print(f"{'leases':>8}{'ours':>8}{'ours, one by one':>20}{'redis-py Lock':>18}")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        async with redis_server(Path(directory)) as server, server.client() as client:
            for count in COUNTS:
                ours, one_by_one, lock = await measure(client, count, rounds)
                print(f"{count:>8}{1:>8}{one_by_one / ours:>20.1f}{lock / ours:>18.1f}")
    print(f"\nmedian of {rounds} rounds of each, in turns; a higher number is slower")


async def measure(client: Redis, count: int, rounds: int) -> list[float]:
    """Median seconds of each way for `count` leases."""
    ways = [*await ours(client, count), await locks(client, count)]
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, taken, strict=True):
            began = perf_counter()
            await way()
            times.append(perf_counter() - began)
    return [statistics.median(times[rounds // 10 :]) for times in taken]


async def ours(client: Redis, count: int) -> list[Way]:
    """Our renewal of `count` leases, as the keeper does it and one by one."""
    sweep = SweepPath("bench", "leases", f"n{count}")
    store = Store(client, Keys(sweep), "node", LeaseSettings(timeout_seconds=5.0), Scripts())
    leases = [await _acquired(store, f"r{number}") for number in range(count)]

    async def together() -> None:
        for at in range(0, count, CHUNK):
            await store.renew_many(leases[at : at + CHUNK], count)

    async def one_by_one() -> None:
        for lease in leases:
            await store.renew_many([lease], count)

    return [together, one_by_one]


async def _acquired(store: Store, run_id: str) -> Lease:
    claim = Claim(run_id, CommandKind.RUN, 0, "train.py", {})
    answer = await store.acquire(claim, f"token-{run_id}", 0, not_after_ms=FOREVER_MS)
    assert isinstance(answer, Granted), answer
    return Lease(run_id, CommandKind.RUN, f"token-{run_id}", answer.fence, 0)


async def locks(client: Redis, count: int) -> Way:
    """The same number of redis-py's locks, each extended by itself."""
    held = [client.lock(f"lock:{count}:{number}", timeout=60) for number in range(count)]
    for lock in held:
        assert await lock.acquire()

    async def extend() -> None:
        for lock in held:
            await lock.reacquire()

    return extend
