"""The play of the short form: faults one by one, then mixed, each a window of time; then the sum.

Owns the timing of the faults: in a gentle play the silences that mixed faults cause must not add up
to more than `longest_silence`, so they act together in episodes, with quiet between these.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio

from coordinator.core.lease import LeaseSettings
from tests.nemesis.faults import FAULTS, LONG_FAULTS, MIXED, Fault
from tests.nemesis.judge import Overlap, Stay, busy_seconds, fence_faults, overlaps, read_stays
from tests.nemesis.world import NODES, SETTINGS, SLACK_SECONDS, SLOTS, World, longest_silence, open_world

DRAIN_SECONDS = 40.0


@dataclass
class Row:
    """One window of the play."""

    fault: str
    began: float
    long: bool
    ended: float = 0.0
    healed: list[float] = field(default_factory=list)
    """When each long fault was over."""
    stays: list[Stay] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    lost: int = 0
    utilisation: float = 0.0


@dataclass
class Result:
    """All that was found."""

    rows: list[Row]
    stays: list[Stay]
    fence_faults: list[tuple[Stay, Stay]]
    facts: dict[str, int]
    unfinished: list[str]
    skipped: str = ""
    broken: list[str] = field(default_factory=list)


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
    mode: str = "leases"
    settings: LeaseSettings = SETTINGS


def chosen(name: str, *, long: bool) -> list[Fault]:
    """The faults that `name` means: all, none (only mixed) or those whose name begins so."""
    pool = LONG_FAULTS if long else FAULTS
    if name == "all":
        return list(pool)
    return [fault for fault in (*FAULTS, *LONG_FAULTS) if fault.name.startswith(name)]


async def play(plan: Plan, directory: Path) -> Result:
    """Play it and sum it up."""
    rng = random.Random(plan.seed)
    rows: list[Row] = []
    async with open_world(
        directory,
        seed=plan.seed,
        mode=plan.mode,
        settings=plan.settings,
        long=plan.long,
    ) as world:
        able = [f for f in plan.faults if world.clock is not None or not f.needs_clock]
        for fault in able:
            async with window(rows, fault.name, fault.long) as row:
                end = anyio.current_time() + plan.seconds
                while anyio.current_time() < end:
                    await episode(world, rng, [fault], row)
        if plan.mixed_seconds:
            pool = [f for f in FAULTS if world.clock is not None or not f.needs_clock]
            async with window(rows, MIXED + (", long" if plan.long else ""), plan.long) as row:
                end = anyio.current_time() + plan.mixed_seconds
                while anyio.current_time() < end:
                    await episode(world, rng, several(rng, pool, plan.long), row)
        await drain(world)
        ended = [m.name for m in world.members if m.process and m.process.returncode is not None]
    skipped = "" if len(able) == len(plan.faults) else "no C compiler: the clock did not jump"
    result = sum_up(world, rows, skipped)
    result.broken += [f"the stack of {name} ended by itself" for name in ended]
    return result


@asynccontextmanager
async def window(rows: list[Row], name: str, long: bool) -> AsyncIterator[Row]:
    """A row that lasts as long as the context."""
    row = Row(name, anyio.current_time(), long)
    rows.append(row)
    yield row
    row.ended = anyio.current_time()


def several(rng: random.Random, pool: Sequence[Fault], long: bool) -> list[Fault]:
    """One to three faults of different targets; in a long play now and then a long one alone."""
    if long and rng.random() < 0.5:
        return [rng.choice(LONG_FAULTS)]
    found: dict[str, Fault] = {}
    for fault in rng.choices(pool, k=rng.randint(1, 3)):
        found.setdefault(fault.target, fault)
    return list(found.values())


async def episode(world: World, rng: random.Random, faults: Sequence[Fault], row: Row) -> None:
    """Faults that act together, then quiet until every node has renewed."""
    settings = world.settings
    if any(fault.long for fault in faults):
        most = settings.ttl_seconds + settings.grace_seconds
        lengths = [rng.uniform(1.1, 1.5) * most for _ in faults]
    else:
        most = (longest_silence(settings) - SLACK_SECONDS) / len(faults)
        lengths = [rng.uniform(0.2, 1.0) * most for _ in faults]
    world.driver.disturbed = True
    async with anyio.create_task_group() as tasks:
        for fault, length in zip(faults, lengths, strict=True):
            tasks.start_soon(partial(fault.act, world, rng, length))
    row.healed.append(anyio.current_time())
    await anyio.sleep(2 * settings.renew_seconds + settings.timeout_seconds)
    world.driver.disturbed = False


async def drain(world: World) -> None:
    """No new runs; every run that there is comes to its end, or is lost."""
    world.driver.draining = True
    with anyio.move_on_after(DRAIN_SECONDS):
        while world.driver.unfinished:  # noqa: ASYNC110 - other processes do it
            await anyio.sleep(0.05)


def sum_up(world: World, rows: list[Row], skipped: str) -> Result:
    """Attribute everything to the window in which it began."""
    stays, tally = read_stays(world.records), world.driver.tally
    found = overlaps(stays)
    last = rows[-1]
    for row in rows:
        until = float("inf") if row is last else row.ended
        row.stays = [stay for stay in stays if row.began <= stay.began < until]
        row.overlaps = [o for o in found if row.began <= o.began < until]
        row.lost = sum(row.began <= at < until for at, _ in tally.lost)
        span = (row.ended - row.began) * len(NODES) * SLOTS
        row.utilisation = busy_seconds(stays, row.began, row.ended) / span
    facts = {
        "runs": len(world.driver.runs),
        "handed out": tally.handed_out,
        "duplicates": tally.duplicates,
        "dropped": tally.dropped,
        "reported as missed": tally.reported,
        "died with their node": tally.lapsed,
        "crashed": tally.crashed,
        "lost": len(tally.lost),
    }
    result = Result(rows, stays, fence_faults(stays), facts, world.driver.unfinished, skipped)
    return replace(result, broken=broken(result, world.settings))


def broken(result: Result, settings: LeaseSettings) -> list[str]:
    """Each promise that was not kept, in words."""
    words = []
    for row in result.rows:
        if not row.stays:
            words.append(f"{row.fault}: nothing was granted, so nothing is shown")
        for overlap in row.overlaps:
            late = _late(overlap, row, settings)
            if late is not None:
                words.append(
                    f"{row.fault}: run {overlap.first.run_id} was held by {overlap.first.node} "
                    f"(fence {overlap.first.fence}) and {overlap.second.node} (fence "
                    f"{overlap.second.fence}) for {overlap.seconds:.3f} s{late}"
                )
        if row.lost:
            words.append(f"{row.fault}: {row.lost} lost runs")
    for before, after in result.fence_faults:
        words.append(f"run {after.run_id}: fence {after.fence} came after {before.fence}")
    if result.unfinished:
        words.append(f"never ended: {', '.join(result.unfinished)}")
    return words


def _late(overlap: Overlap, row: Row, settings: LeaseSettings) -> str | None:
    """None for an overlap that may be: it ended soon after the contact had returned."""
    if not row.long:
        return ""
    healed = min((at for at in row.healed if at > overlap.began), default=overlap.began)
    bound = 1.1 * settings.renew_seconds + settings.timeout_seconds + settings.stop_budget_seconds
    over = overlap.ended - healed - bound - SLACK_SECONDS
    return None if over <= 0 else f", {over:.3f} s longer than allowed"
