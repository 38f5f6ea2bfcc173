"""A node for lease tests: a keeper with scaled times, its handlers recorded."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
from redis.asyncio import Redis

from coordinator.core.model import CommandKind, SweepPath
from coordinator.leases import Claim, HolderState, Lease, LeaseKeeper, LeaseSettings
from coordinator.leases.keys import Keys

FAST = LeaseSettings(
    ttl_seconds=1.8,
    renew_seconds=0.2,
    grace_seconds=0.5,
    handoff_seconds=1.5,
    race_window_seconds=0.3,
    timeout_seconds=0.5,
    stop_budget_seconds=0.3,
)
"""Times scaled down so far that a loaded machine of two cores still keeps them."""
NO_RACE = replace(FAST, race_window_seconds=0.0)
"""Every conflict is a hand-off."""
PATIENT = replace(NO_RACE, handoff_seconds=60.0)
"""And every hand-off is waited for."""


def claim(run_id: str, kind: CommandKind = CommandKind.RUN, slot: int = 0) -> Claim:
    """A claim with some arguments."""
    return Claim(run_id, kind, slot, "train.py", {"lr": {"value": 0.1}})


def resume(run_id: str, slot: int = 0) -> Claim:
    """A resumed run's claim."""
    return claim(run_id, CommandKind.RESUME, slot)


@dataclass
class Node:
    """A keeper and what it called back."""

    keeper: LeaseKeeper
    journal_dir: Path
    fenced: list[Lease] = field(default_factory=list)
    stopped: list[tuple[Lease, HolderState]] = field(default_factory=list)

    def journalled(self) -> set[str]:
        """Tokens on disk."""
        return {path.stem for path in self.journal_dir.glob("*.json")}

    async def held(self, wanted: Claim) -> Lease:
        """Acquire and insist."""
        lease = await self.keeper.acquire(wanted)
        assert isinstance(lease, Lease), lease
        return lease


@asynccontextmanager
async def node(
    url: str,
    sweep: SweepPath,
    directory: Path,
    name: str = "node-a",
    settings: LeaseSettings = FAST,
    *,
    started: bool = True,
    alive: tuple[str, ...] = (),
    ended: dict[str, Any] | None = None,
) -> AsyncIterator[Node]:
    """A running node; with `started` false its first contact is not awaited."""
    journal_dir = directory / name
    fenced: list[Lease] = []
    stopped: list[tuple[Lease, HolderState]] = []

    async def on_fenced(lease: Lease) -> None:
        fenced.append(lease)

    async def on_stop(lease: Lease, state: HolderState) -> None:
        stopped.append((lease, state))

    keeper = LeaseKeeper(url, sweep, name, settings, journal_dir, on_fenced, on_stop)
    keeper.adopt(alive, ended or {})
    async with anyio.create_task_group() as tasks:
        if started:
            with anyio.fail_after(20):
                await tasks.start(keeper.run)
        else:
            tasks.start_soon(keeper.run)
        try:
            yield Node(keeper, journal_dir, fenced, stopped)
        finally:
            tasks.cancel_scope.cancel()


async def announced(client: Redis, sweep: SweepPath) -> list[str]:
    """The events of the stream."""
    entries: Any = await client.xrange(Keys(sweep).stream)
    return [fields["event"] for _, fields in entries]


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition within a generous bound."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of other processes have no event
            await anyio.sleep(0.005)
