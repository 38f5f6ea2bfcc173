"""One process of a simulation: some of the nodes, driven over a socket by the play.

Owns its nodes and the measure of how late its event loop runs: a starved client must not be taken
for a slow Redis. It must never touch nodes of another process.
"""

import random
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream
from redis.asyncio import Redis

from coordinator.config import Config
from coordinator.core.model import CommandKind
from coordinator.daemon.guards import _breaker_settings, _pace_settings
from coordinator.errors import PeerError
from coordinator.leases import Claim, LeaseSettings
from tests.scale.judge import Interval
from tests.scale.node import ARGUMENTS, Notes, SimNode, wandb_queue

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

LAG_SECONDS = 0.02
LINE = 2**26
CONTACTS_AT_ONCE = 50


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told once."""

    url: str
    queue_url: str
    directory: str
    nodes: list[str]
    slots: int
    settings: dict[str, Any] = {}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What it is told then, again and again; nodes that are not its own are passed over."""

    do: str
    nodes: list[str] = []
    on: bool = True
    seconds: tuple[float, float] = (0.0, 0.0)
    copies: float = 0.0
    count: int = 0
    claims: list[tuple[str, str]] = []
    """Node and run."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands."""

    held: int
    waiting: int
    healthy: int
    nodes: int
    oldest: float
    """Seconds since the last acknowledged renewal of the most silent node."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened since it was asked last."""

    lags: list[float]
    cpu_seconds: float
    acquires: list[float]
    drops: dict[str, int]
    events: dict[str, int]
    rescued: int
    questions: list[float]


class Worker:
    """See the module."""

    def __init__(self, orders: Orders, queue: Redis) -> None:
        self._orders = orders
        self._queue = queue
        self._notes = Notes()
        self._nodes: dict[str, SimNode] = {}
        self._lags: list[float] = []
        self._questions: list[float] = []
        self._events: dict[str, int] = {}
        self._cpu = process_time()
        self._told = 0
        self._tasks: TaskGroup

    async def run(self, socket: str) -> None:
        """Until the play hangs up."""
        async with (
            await anyio.connect_unix(socket) as stream,
            anyio.create_task_group() as self._tasks,
        ):
            self._tasks.start_soon(self._measure_lag)
            lines = BufferedByteReceiveStream(stream)
            with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                while True:
                    line = await lines.receive_until(b"\n", LINE)
                    order = msgspec.json.decode(line, type=Order)
                    answer = await getattr(self, f"_on_{order.do}")(order)
                    await stream.send(msgspec.json.encode(answer) + b"\n")
            self._tasks.cancel_scope.cancel()

    async def _measure_lag(self) -> None:
        while True:
            due = monotonic() + LAG_SECONDS
            await anyio.sleep(LAG_SECONDS)
            self._lags.append(monotonic() - due)

    def count_event(self, _logger: object, name: str, event: MutableMapping[str, Any]) -> str:
        """A processor of structlog: what a person would have to know is counted."""
        if name in {"warning", "error", "critical"}:
            word = str(event["event"])
            self._events[word] = self._events.get(word, 0) + 1
        raise structlog.DropEvent

    def _mine(self, order: Order) -> list[SimNode]:
        if not order.nodes:
            return list(self._nodes.values())
        return [self._nodes[name] for name in order.nodes if name in self._nodes]

    # --- orders -----------------------------------------------------------------------------------
    async def _on_start(self, order: Order) -> int:
        """Start the nodes named, all at once; answers when each has met Redis."""
        async with anyio.create_task_group() as tasks:
            for name in order.nodes:
                if name in self._orders.nodes:
                    tasks.start_soon(self._start, name)
        return len(self._nodes)

    async def _start(self, name: str) -> None:
        settings = LeaseSettings(**self._orders.settings)
        config = Config()
        guards = _breaker_settings(config), _pace_settings(config)
        node = SimNode(name, self._orders.url, self._queue, Path(self._orders.directory),
                       self._orders.slots, settings, guards, self._notes)  # fmt: skip
        await self._tasks.start(node.run)
        self._nodes[name] = node

    async def _on_work(self, order: Order) -> int:
        """Free slots ask for work, or do not; with `copies` they are in a hurry."""
        for node in self._mine(order):
            node.hurried = order.copies > 0
            node.work(on=order.on)
        return 0

    async def _on_over(self, order: Order) -> int:
        """The sweep is over, so nodes look whether anything waits; or it goes on."""
        for node in self._mine(order):
            node.over = order.on
        return 0

    async def _on_vanish(self, order: Order) -> int:
        mine = self._mine(order)
        for node in mine:
            node.vanish()
            del self._nodes[node.name]
        return len(mine)

    async def _on_finish(self, order: Order) -> int:
        """Trainings end by themselves, spread over the seconds given."""
        self._tasks.start_soon(self._finish, order)
        return 0

    async def _finish(self, order: Order) -> None:
        for _ in range(order.count):
            await anyio.sleep(order.seconds[1] / order.count)
            random.choice(list(self._nodes.values())).finish_one()

    async def _on_preempt(self, order: Order) -> int:
        mine = self._mine(order)
        for node in mine:
            self._tasks.start_soon(node.preempt, order.seconds, order.copies)
        return len(mine)

    async def _on_intrude(self, order: Order) -> int:
        """Claims for runs that others hold, as a server that hands out a run twice causes them."""
        for slot, (name, run_id) in enumerate(order.claims, 1000):
            if name in self._nodes:
                claim = Claim(run_id, CommandKind.RESUME, slot, "train.py", ARGUMENTS)
                self._tasks.start_soon(self._nodes[name].claim, claim)
        return 0

    async def _on_ask(self, order: Order) -> int:
        """What `coordinatorctl nodes` and `leases ls` ask."""
        node = next(iter(self._nodes.values()))
        assert node.keeper.operations is not None
        for question in (node.keeper.operations.nodes, node.keeper.list_leases):
            began = monotonic()
            try:
                await question()
            except PeerError:
                self._events["question_failed"] = self._events.get("question_failed", 0) + 1
            self._questions.append(monotonic() - began)
        return order.count

    # --- questions --------------------------------------------------------------------------------
    async def _on_state(self, _order: Order) -> State:
        nodes = self._nodes.values()
        health = [node.keeper.health() for node in nodes]
        return State(
            held=sum(node.held for node in nodes),
            waiting=sum(node.claims for node in nodes),
            healthy=sum(one.state == "ok" for one in health),
            nodes=len(nodes),
            oldest=max((one.since_seconds for one in health), default=0.0),
        )

    async def _on_take(self, _order: Order) -> Taken:
        cpu, self._cpu = process_time() - self._cpu, process_time()
        notes = self._notes
        fresh = notes.intervals[self._told :]
        self._told = len(notes.intervals)
        taken = Taken(
            lags=self._lags, cpu_seconds=cpu,
            acquires=[i.began - i.asked for i in fresh],
            drops=dict(notes.drops), events=dict(self._events),
            rescued=notes.rescued, questions=self._questions,
        )  # fmt: skip
        self._lags, self._questions, notes.rescued = [], [], 0
        notes.drops.clear()
        self._events.clear()
        return taken

    async def _on_intervals(self, _order: Order) -> list[Interval]:
        return self._notes.intervals


async def serve(socket: str, orders: Orders) -> None:
    """One process, until the play hangs up."""
    async with wandb_queue(orders.queue_url) as queue:
        worker = Worker(orders, queue)
        structlog.configure(processors=[worker.count_event])
        await worker.run(socket)


def main() -> None:
    """`worker.py SOCKET`, with the orders on standard input."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    anyio.run(serve, sys.argv[1], orders)


if __name__ == "__main__":
    main()
