"""The play: faults one by one, then mixed, each a window of time.

Owns the timing of the faults: in a gentle play the silences that mixed faults cause must not add up
to more than `longest_silence`, so they act together in episodes, with quiet between these.
"""

import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

import anyio

from coordinator.core.lease import LeaseSettings
from tests.nemesis.faults import FAULTS, LONG_FAULTS, MIXED, Fault
from tests.nemesis.judge import read_stays
from tests.nemesis.place import Place, longest_silence
from tests.nemesis.verdict import Result, Row, judge
from tests.nemesis.world import SETTINGS, World, open_world

DRAIN_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be played."""

    faults: Sequence[Fault]
    seconds: float
    """For each fault."""
    mixed_seconds: float
    long: bool
    """Whether faults outlast a lease."""
    seed: int
    together: bool = False
    """Faults of different targets in pairs rather than one by one: half the time, less to tell."""
    mode: str = "leases"
    settings: LeaseSettings = SETTINGS


def chosen(name: str, *, long: bool) -> list[Fault]:
    """The faults that `name` means: all, or those whose name begins so."""
    if name == "all":
        return list(LONG_FAULTS if long else FAULTS)
    return [fault for fault in (*FAULTS, *LONG_FAULTS) if fault.name.startswith(name)]


async def play(plan: Plan, directory: Path) -> Result:
    """Play the short form and judge it."""
    rows: list[Row] = []
    async with open_world(
        directory, seed=plan.seed, mode=plan.mode, settings=plan.settings, long=plan.long
    ) as world:
        able = [f for f in plan.faults if world.clock is not None or not f.needs_clock]
        rng = random.Random(plan.seed)
        for faults in pairs(able) if plan.together else [[fault] for fault in able]:
            name, long = " + ".join(f.name for f in faults), any(f.long for f in faults)
            async with window(rows, name, long=long) as row:
                await episodes(world, rng, partial(list, faults), row, plan.seconds)
        if plan.mixed_seconds:
            pool = [f for f in FAULTS if world.clock is not None or not f.needs_clock]
            several = partial(mixture, rng, pool, LONG_FAULTS if plan.long else ())
            name = MIXED + (", long" if plan.long else "")
            async with window(rows, name, long=plan.long) as row:
                await episodes(world, rng, several, row, plan.mixed_seconds)
        await drain(world)
        fallen = world.fallen
    result = sum_up(world, rows)
    result.broken += [f"the stack of {name} ended by itself" for name in fallen]
    if len(able) < len(plan.faults):
        result.skipped = "the clock did not jump, for want of a C compiler"
    return result


@asynccontextmanager
async def window(rows: list[Row], name: str, *, long: bool) -> AsyncIterator[Row]:
    """A row that lasts as long as the context."""
    row = Row(name, anyio.current_time(), long)
    rows.append(row)
    yield row
    row.ended = anyio.current_time()


def pairs(faults: Sequence[Fault]) -> list[list[Fault]]:
    """Each fault once: those of the server beside those of other targets."""
    servers = [fault for fault in faults if fault.target == "redis"]
    others = [fault for fault in faults if fault.target != "redis"]
    both = zip_longest(servers, others)
    return [[fault for fault in pair if fault is not None] for pair in both]


def mixture(rng: random.Random, pool: Sequence[Fault], long: Sequence[Fault]) -> list[Fault]:
    """One to three faults of different targets; every other time one of `long` alone."""
    if long and rng.random() < 0.5:
        return [rng.choice(long)]
    found: dict[str, Fault] = {}
    for fault in rng.choices(pool, k=rng.randint(1, 3)):
        found.setdefault(fault.target, fault)
    return list(found.values())


async def episodes(
    place: Place, rng: random.Random, choose: Callable[[], list[Fault]], row: Row, seconds: float
) -> None:
    """One episode after the other, until `seconds` have passed."""
    end = anyio.current_time() + seconds
    while anyio.current_time() < end:
        await episode(place, rng, choose(), row)


async def episode(place: Place, rng: random.Random, faults: Sequence[Fault], row: Row) -> None:
    """Faults that act together, then quiet until every node has renewed."""
    settings = place.settings
    if any(fault.long for fault in faults):
        most = settings.ttl_seconds + settings.grace_seconds
        lengths = [rng.uniform(1.1, 1.5) * most for _ in faults]
    else:
        most = (longest_silence(settings) - place.slack_seconds) / len(faults)
        lengths = [rng.uniform(0.3, 1.0) * most for _ in faults]
    place.disturb(on=True)
    async with anyio.create_task_group() as tasks:
        for fault, length in zip(faults, lengths, strict=True):
            tasks.start_soon(fault.act, place, rng, length)
    row.healed.append(anyio.current_time())
    await anyio.sleep(2 * settings.renew_seconds + settings.timeout_seconds)
    place.disturb(on=False)


async def drain(world: World) -> None:
    """No new runs; every run that there is comes to its end, or is lost."""
    world.driver.draining = True
    with anyio.move_on_after(DRAIN_SECONDS):
        while world.driver.unfinished:
            for stay in read_stays(world.records):
                if stay.state == "alive" and anyio.current_time() - stay.ended < 0.5:
                    with suppress(ProcessLookupError):
                        os.kill(stay.pid, signal.SIGTERM)  # handed out again, for a moment then
            await anyio.sleep(0.3)


def sum_up(world: World, rows: list[Row]) -> Result:
    """What the records and the driver's tally say."""
    tally, runs = world.driver.tally, world.driver.runs
    facts = {
        "runs": len(runs),
        "handed out": tally.handed_out,
        "duplicates": tally.duplicates,
        "dropped": tally.dropped,
        "rescued": tally.rescued,
        "died with their node": tally.lapsed,
        "crashed": tally.crashed,
    }
    never = [(rows[-1].ended, f"run {run_id} never ended") for run_id in world.driver.unfinished]
    lost = [(at, f"run {run_id} was in nobody's hands") for at, run_id in tally.lost]
    return judge(
        rows,
        read_stays(world.records),
        [*lost, *never],
        facts,
        slots=world.slots,
        settings=world.settings,
        slack_seconds=world.slack_seconds,
    )
