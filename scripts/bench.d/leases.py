"""How long a node takes to renew all its leases, as a multiple of ours.

Owns three ways of doing it, taken in turns on one server, so that whatever else the machine does
falls on all of them: ours (all in one script call, in chunks), ours one by one, and redis-py's own
Lock extended one by one (it has no other way). The median of each way counts.
"""

import argparse
from collections.abc import Awaitable, Callable
from time import perf_counter

import anyio
from figures import median, ratio
from redis.asyncio import Redis
from report import Comparison, Measurement, Report, progress

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
EXAMPLES = """\
examples:
  scripts/bench leases               8, 100 and 1,000 leases renewed
  scripts/bench leases --rounds 200  steadier numbers
"""
SHORT = ("--counts", "8", "--rounds", "3")


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, metavar="N")
    parser.add_argument("--rounds", type=int, default=30, help="of each way (default: 30)")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    return anyio.run(_measure, options)


async def _measure(options: argparse.Namespace) -> Report:
    report = Report(
        "leases",
        "a node renews all its leases; milliseconds, and multiples of ours",
        ["leases", "ours, ms", "one by one, ms", "redis-py Lock, ms", "one by one/ours",
         "Lock/ours"],
        notes=[f"Medians of {options.rounds} rounds of each way in turns, less the first tenth.",
               "Ours renews all in one round trip."],
    )  # fmt: skip
    async with redis_server(options.scratch) as server, server.client() as client:
        for count in options.counts:
            progress(f"leases: {count}")
            found = [1000 * seconds for seconds in await _medians(client, count, options.rounds)]
            mine, one_by_one, lock = found
            report.rows.append([count, *found, ratio(one_by_one, mine), ratio(lock, mine)])
            for other, theirs in (("one by one", one_by_one), ("redis-py Lock", lock)):
                report.comparisons.append(
                    Comparison(f"{count} leases renewed", "ms", mine, other, theirs)
                )
    return report


async def _medians(client: Redis, count: int, rounds: int) -> list[float]:
    """Median seconds of each way for `count` leases."""
    ways = [*await ours(client, count), await locks(client, count)]
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, taken, strict=True):
            began = perf_counter()
            await way()
            times.append(perf_counter() - began)
    return [median(times[rounds // 10 :]) for times in taken]


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


LEASES = Measurement("leases", "a node renews all its leases", EXAMPLES, add_options, measure,
                     SHORT)  # fmt: skip
