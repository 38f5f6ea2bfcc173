"""One simulated node: all that a daemon asks of Redis, without agents and trainings.

Owns a real lease keeper, breakers and pacer with the default settings, and slots that claim, hold
and release as the supervisor's do. The W&B server is a list of run IDs that all processes share. It
must never judge: it notes who held which run from when to when.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
from anyio.abc import TaskStatus
from redis.asyncio import BlockingConnectionPool, Redis

from coordinator.core.lease import HolderState
from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.errors import PeerError
from coordinator.leases import (
    Claim,
    Dropped,
    Lease,
    LeaseKeeper,
    LeaseSettings,
    NodeFacts,
)
from coordinator.supervisor.breakers import Breakers, BreakerSettings
from coordinator.supervisor.pacing import Pacer, PaceSettings
from coordinator.supervisor.prospects import Prospects
from tests.scale.judge import Interval

SWEEP = SweepPath("scale", "thousand", "nodes")
QUEUE = "queue"
"""The list of run IDs that the W&B server would hand out next."""
POLL_SECONDS = 5.0
"""`[sweep] poll_seconds`."""
TICK_SECONDS = 1.0
"""How often the supervisor's pool looks around."""
ARGUMENTS = {name: {"value": 0.001 * at} for at, name in enumerate(
    ("lr", "weight_decay", "dropout", "warmup_steps", "batch_size", "layers"))}  # fmt: skip


@dataclass
class Notes:
    """What the nodes of one process have seen since they were asked last."""

    intervals: list[Interval] = field(default_factory=list)
    acquires: list[float] = field(default_factory=list)
    """Seconds of each acquire that was answered without a wait for a holder."""
    handoffs: list[float] = field(default_factory=list)
    """Seconds from each preempted training's end to the next grant, for claims that waited."""
    drops: dict[str, int] = field(default_factory=dict)
    rescued: int = 0

    def count_drop(self, reason: str) -> None:
        """One more."""
        self.drops[reason] = self.drops.get(reason, 0) + 1


@dataclass
class Holding:
    """A slot's lease; the training ends when `over` is set, with `outcome`."""

    lease: Lease
    interval: Interval
    over: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome = Outcome.FINISHED

    def end(self, outcome: Outcome) -> None:
        """The training's last process is gone."""
        self.interval.ended = monotonic()
        self.outcome = outcome
        self.over.set()


class SimNode:
    """See the module."""

    def __init__(
        self,
        name: str,
        url: str,
        queue: Redis,
        directory: Path,
        slots: int,
        settings: LeaseSettings,
        guards: tuple[BreakerSettings, PaceSettings],
        notes: Notes,
    ) -> None:
        self.name = name
        self.slots = slots
        self.keeper = LeaseKeeper(
            url, SWEEP, name, settings, directory / name, self._fenced, self._stopped
        )
        self.keeper.describe(self._facts)
        self._breakers = Breakers(guards[0], name, self.keeper.shared, lambda: None)
        self._pacer = Pacer(guards[1], self.keeper.shared)
        self._queue = queue
        self._notes = notes
        self._turn = anyio.Lock()
        self._asks = anyio.Event()
        self._scope = anyio.CancelScope()
        self.hurried = False
        """Its commands are there already, so nothing is paced: all claims come at once."""
        self.over = False
        """The sweep is: this node then looks whether runs wait to be rescued."""
        self.closed = False
        me: Any = self
        self._prospects = Prospects(me, me, lambda: False)
        self.holdings: dict[int, Holding] = {}
        self.claims = 0
        """That wait for an answer."""

    @property
    def held(self) -> int:
        """Runs that are trained here now."""
        return sum(holding.interval.ended is None for holding in self.holdings.values())

    def _facts(self) -> NodeFacts:
        return NodeFacts("0.1.0", "running", self.slots, len(self.holdings), 4711)

    # --- life -----------------------------------------------------------------------------------
    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until it vanishes or is cancelled; started once its keeper is."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.keeper.run)
                task_status.started()
                tasks.start_soon(self._breakers.run, self._ages)
                tasks.start_soon(self._look_around)
                for slot in range(self.slots):
                    tasks.start_soon(self._serve, slot)

    def vanish(self) -> None:
        """Power is cut: the trainings end, nothing is released."""
        for holding in self.holdings.values():
            holding.interval.ended = monotonic()
        self.holdings.clear()
        self._scope.cancel()

    def work(self, *, on: bool) -> None:
        """Let free slots ask for work, or not."""
        if on:
            self._asks.set()
        elif self._asks.is_set():
            self._asks = anyio.Event()

    def _ages(self) -> list[tuple[int, float | None]]:
        now = monotonic()
        return [(slot, now - held.interval.began) for slot, held in self.holdings.items()]

    async def _look_around(self) -> None:
        while True:
            await anyio.sleep(TICK_SECONDS)
            await self._prospects.look(quiet=not self.holdings)

    async def waiting(self, _over_seconds: float) -> bool:
        """As `supervisor.rescues.Rescues.waiting`, of which this is the only question to Redis."""
        return (await self.keeper.waiting()).rescues > 0

    # --- the slots ------------------------------------------------------------------------------
    async def _serve(self, slot: int) -> None:
        while True:
            claim = await self._next(slot)
            await self.claim(claim)

    async def _next(self, slot: int) -> Claim:
        """As `supervisor.claims.Claims.next`: the rescue queue, then the server, in turns."""
        async with self._turn:
            while True:
                await self._asks.wait()
                if not self.keeper.admits(None):
                    await anyio.sleep(TICK_SECONDS)
                    continue
                if (found := await self.keeper.take()) is not None:
                    self._notes.rescued += 1
                    return Claim(found.run_id, CommandKind.RESUME, slot, found.program, found.args)
                pause = 0.0 if self.hurried else await self._pacer.claim_wait_seconds()
                if pause == 0.0:
                    run = await self._queue.lpop(QUEUE)
                    if run is not None:
                        kind, run_id = str(run).split(":")
                        return Claim(run_id, CommandKind(kind), slot, "train.py", ARGUMENTS)
                    pause = random.uniform(0.5, 1.0) if self.hurried else POLL_SECONDS
                await anyio.sleep(pause)

    async def claim(self, claim: Claim) -> bool:
        """One command: trained to its end, or dropped."""
        asked = monotonic()
        self.claims += 1
        try:
            answer = await self.keeper.acquire(claim)
        except PeerError:
            await self._queue.rpush(QUEUE, f"{claim.kind.value}:{claim.run_id}")
            return False
        finally:
            self.claims -= 1
        if isinstance(answer, Dropped):
            self._notes.count_drop(answer.reason.value)
            return False
        await self._train(answer, asked)
        return True

    async def _train(self, lease: Lease, asked: float) -> None:
        interval = Interval(lease.run_id, self.name, lease.fence, asked, monotonic(), None)
        self._notes.intervals.append(interval)
        holding = self.holdings[lease.slot] = Holding(lease, interval)
        await holding.over.wait()
        await self.keeper.release(lease.token, holding.outcome)
        self.holdings.pop(lease.slot, None)

    # --- what happens to it -----------------------------------------------------------------------
    def finish_one(self) -> bool:
        """Some training ends by itself; False when none is here."""
        living = [one for one in self.holdings.values() if one.interval.ended is None]
        if living:
            random.choice(living).end(Outcome.FINISHED)
        return bool(living)

    async def preempt(self, seconds: tuple[float, float], copies: float) -> None:
        """All its trainings save and end; the server queues each at its exit, some twice."""
        self.work(on=False)
        async with anyio.create_task_group() as tasks:
            for holding in list(self.holdings.values()):
                tasks.start_soon(self._preempt, holding, random.uniform(*seconds), copies)

    async def _preempt(self, holding: Holding, seconds: float, copies: float) -> None:
        await self.keeper.closing(holding.lease.token)
        again = [f"resume:{holding.lease.run_id}"] * (2 if random.random() < copies else 1)
        await self._queue.rpush(QUEUE, *again)
        await anyio.sleep(seconds)
        holding.end(Outcome.PREEMPTED)

    async def _fenced(self, lease: Lease) -> None:
        for slot, holding in list(self.holdings.items()):
            if holding.lease.token == lease.token:
                holding.interval.ended = monotonic()
                self.holdings.pop(slot)
        self._notes.count_drop("FENCED")
        await self.keeper.forget(lease.token)

    async def _stopped(self, _lease: Lease, state: HolderState) -> None:
        self._notes.count_drop(f"STOPPED {state.value}")


@asynccontextmanager
async def wandb_queue(url: str) -> AsyncIterator[Redis]:
    """The stand-in for the W&B server: a Redis of its own, so that it is in nobody's figures."""
    pool = BlockingConnectionPool.from_url(
        url, decode_responses=True, max_connections=32, timeout=None
    )
    client = Redis.from_pool(pool)
    try:
        yield client
    finally:
        await client.aclose()
