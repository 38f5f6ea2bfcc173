"""The play: a thousand nodes on one Redis, phase by phase.

Owns the order of the phases and what each has to show. Figures are taken by `server` (Redis of
itself), `worker` (the clients of themselves) and `judge` (the truth about who held what).
"""

import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import anyio

from coordinator.core.lease import LeaseSettings
from coordinator.leases.keys import Keys
from tests.nemesis.world import quick_place
from tests.scale import judge
from tests.scale.fleet import Fleet, fleet
from tests.scale.node import QUEUE, SWEEP, wandb_queue
from tests.scale.server import Scene, Work, scene
from tests.scale.worker import Orders, State, Taken
from tests.support.redis import RedisServer, redis_server

LOOK_SECONDS = 0.25
PHASES = ("idle", "over", "herd", "steady", "single", "vanish", "restart", "wipe", "preempt")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    nodes: int = 1000
    slots: int = 8
    processes: int = 4
    phases: tuple[str, ...] = PHASES
    seconds: float = 60.0
    """Of the phases that have no end of their own."""
    wave: int = 50
    """Nodes preempted at a time."""
    save_seconds: tuple[float, float] = (0.5, 2.0)
    settings: dict[str, Any] = field(default_factory=dict)
    """Lease times other than the defaults."""
    program: str | None = None
    seed: int = 20

    @property
    def runs(self) -> int:
        """As many as there are slots."""
        return self.nodes * self.slots

    @property
    def times(self) -> LeaseSettings:
        """As the nodes have them."""
        return LeaseSettings(**self.settings)


@dataclass
class Phase:
    """One phase and its figures."""

    name: str
    work: Work
    clients: Taken
    duplicates: int
    lost: int
    facts: dict[str, str]


@dataclass
class Result:
    """Everything that was found."""

    server: str
    phases: list[Phase] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def phase(self, name: str) -> Phase | None:
        """The phase of that name, if it was played."""
        return next((phase for phase in self.phases if phase.name == name), None)


class InVainError(Exception):
    """a phase did not come to its end"""


class Play:
    """See the module."""

    def __init__(self, plan: Plan, stage: Scene, crew: Fleet, queue: Any, result: Result) -> None:
        self._plan = plan
        self._scene = stage
        self._fleet = crew
        self._queue = queue
        self._result = result
        self._dice = random.Random(plan.seed)
        self._alive = names("node", plan.nodes)
        self._spare = names("spare", plan.wave)
        self._expected = 0
        """Runs that somebody should hold at the end of a phase."""
        self._facts: dict[str, str] = {}

    async def run(self, tell: Callable[[Phase], None]) -> None:
        """All phases of the plan, in their order."""
        try:
            await self._start()
            for name in self._plan.phases:
                async with self._phase(name, tell):
                    await getattr(self, f"_{name}")()
        except InVainError as error:
            self._result.broken.append(str(error))

    async def _start(self) -> None:
        began = monotonic()
        await self._fleet.tell("start", nodes=self._alive)
        await self._reach(lambda s: s.healthy == self._plan.nodes, "all nodes see Redis")
        self._facts["all nodes started"] = f"{monotonic() - began:.1f} s"

    @asynccontextmanager
    async def _phase(self, name: str, tell: Callable[[Phase], None]) -> AsyncIterator[None]:
        await self._fleet.take()
        await self._queue.delete(QUEUE)  # copies of the phase before that nobody was handed
        await self._scene.begin()
        try:
            yield
        finally:
            await self._conclude(name, tell)

    async def _conclude(self, name: str, tell: Callable[[Phase], None]) -> None:
        work, clients = await self._scene.end(), await self._fleet.take()
        intervals = await self._fleet.intervals()
        found = judge.duplicates(intervals)
        lost = self._expected - len(judge.held_now(intervals))
        phase = Phase(name, work, clients, len(found), max(lost, 0), self._facts)
        self._facts = {}
        self._result.phases.append(phase)
        tell(phase)

    async def _reach(
        self, condition: Callable[[State], bool], words: str, seconds: float = 200.0
    ) -> State:
        """Wait until the state of all nodes is so; at the latest it is broken."""
        until = monotonic() + seconds
        while not condition(state := await self._fleet.state()):
            if monotonic() > until:
                raise InVainError(f"waited {seconds:g} s in vain until {words}: {state}")
            await anyio.sleep(LOOK_SECONDS)
        return state

    async def _hand_out(self, runs: list[str], kind: str, copies: float) -> None:
        """The W&B server queues `runs`; some it hands out two to four times in a row."""
        lot = list[tuple[float, str]]()
        for run in runs:
            times = self._dice.choice((2, 3, 4)) if self._dice.random() < copies else 1
            lot += [(len(lot) + self._dice.uniform(0, 200), f"{kind}:{run}") for _ in range(times)]
        words = [word for _, word in sorted(lot)]
        for at in range(0, len(words), 5000):
            await self._queue.rpush(QUEUE, *words[at : at + 5000])

    # --- the phases -------------------------------------------------------------------------------
    async def _idle(self) -> None:
        """Every node has free slots and asks for work; there is none."""
        await self._fleet.tell("work", on=True)
        await anyio.sleep(self._plan.seconds)
        await self._fleet.tell("work", on=False)

    async def _over(self) -> None:
        """The sweep is over: every node looks whether anything waits to be rescued."""
        await self._fleet.tell("over", on=True)
        await anyio.sleep(self._plan.seconds / 2)
        await self._fleet.tell("over", on=False)

    async def _herd(self) -> None:
        """A claim of every slot at once, a third of the runs handed out two to four times."""
        runs = [f"r{number:05}" for number in range(self._plan.runs)]
        await self._hand_out(runs, "run", 1 / 3)
        self._expected = len(runs)
        began = monotonic()
        await self._fleet.tell("work", on=True, copies=1.0)
        await self._reach(lambda s: s.held >= len(runs), "every run is held")
        self._facts["all runs held after"] = f"{monotonic() - began:.1f} s"
        lease, run = await self._scene.bytes_of_run(runs[0])
        self._facts["bytes of a lease, of a registry entry"] = f"{lease}, {run}"

    async def _steady(self) -> None:
        """Nothing but renewals, and an operator who looks at everything once."""
        await self._fleet.tell("work", on=False)
        await anyio.sleep(self._plan.seconds)
        await self._fleet.ask_for_all()

    async def _single(self) -> None:
        """Trainings end one by one, and their slots claim the next run."""
        count = min(int(10 * self._plan.seconds), self._plan.runs)
        fresh = [f"s{number:05}" for number in range(count)]
        await self._hand_out(fresh, "run", 0.0)
        await self._fleet.tell("work", on=True)
        each = count // self._plan.processes
        await self._fleet.tell("finish", count=each, seconds=(0.0, 0.8 * self._plan.seconds))
        await anyio.sleep(self._plan.seconds)
        await self._reach(lambda s: s.held >= self._expected, "every slot has its next run")
        await self._fleet.tell("work", on=False)

    async def _vanish(self) -> None:
        """A tenth of the nodes loses power; as many new ones come and find their runs."""
        gone = self._dice.sample(self._alive, max(len(self._alive) // 10, 1))
        await self._fleet.tell("vanish", nodes=gone)
        fresh = names("fresh", len(gone))
        await self._fleet.tell("start", nodes=fresh)
        await self._fleet.tell("work", nodes=fresh, on=True)
        await self._reach(lambda s: s.held >= self._expected, "lost nodes' runs are held again")
        self._alive = [name for name in self._alive if name not in set(gone)] + fresh
        found = judge.gaps(await self._fleet.intervals(), set(gone))
        self._facts["taken over after (least, median, most)"] = spread(found)
        least = self._plan.times.settle_seconds - 1.1 * self._plan.times.renew_seconds - 2.0
        if found and min(found) < least:
            self._result.broken.append(f"a run was taken over after only {min(found):.1f} s")
        await self._fleet.tell("work", on=False)

    async def _restart(self) -> None:
        """Redis is killed and comes back with its data; racy claims meanwhile."""
        await self._again(wiped=False)

    async def _wipe(self) -> None:
        """Redis is killed and comes back empty; racy claims meanwhile."""
        await self._again(wiped=True)

    async def _again(self, *, wiped: bool) -> None:
        server = self._scene.server
        await server.kill()
        if wiped:
            shutil.rmtree(server.socket.parent / "appendonlydir")
        began = monotonic()
        await server.start()
        self._facts["Redis answers after"] = f"{monotonic() - began:.1f} s"
        await self._intrude()
        rhythm = 1.2 * self._plan.times.renew_seconds
        await self._reach(
            lambda s: s.healthy == s.nodes and s.oldest < monotonic() - began < 600,
            "every node has renewed since", 120.0,
        )  # fmt: skip
        self._facts["every node has renewed after"] = f"{monotonic() - began:.1f} s"
        await anyio.sleep(rhythm)
        await self._reach(lambda s: s.waiting == 0, "racy claims are settled")
        self._facts["racy claims settled after"] = f"{monotonic() - began:.1f} s"

    async def _intrude(self) -> None:
        """Every tenth run is handed out once more while it is held."""
        held = sorted(judge.held_now(await self._fleet.intervals()))
        claims = [(self._dice.choice(self._alive), run) for run in held[::10]]
        await self._fleet.tell("intrude", claims=claims)

    async def _preempt(self) -> None:
        """Every node is preempted, wave by wave; those of the wave before take the runs on."""
        await self._fleet.tell("start", nodes=self._spare)
        free, order = self._spare, list(self._alive)
        began = monotonic()
        for at in range(0, len(order), self._plan.wave):
            wave = order[at : at + self._plan.wave]
            await self._fleet.tell("work", nodes=free, on=True, copies=1.0)
            await self._fleet.tell(
                "preempt", nodes=wave, seconds=self._plan.save_seconds, copies=0.2
            )
            await anyio.sleep(self._plan.save_seconds[1])
            await self._reach(lambda s: s.held >= self._expected, "the wave's runs are held again")
            free = wave
        await self._fleet.tell("work", on=False)
        found = judge.handoffs(await self._fleet.intervals(), began)
        self._facts["hand-offs that waited"] = str(len(found))
        self._facts["hand-off p50, p99, most"] = (
            f"{judge.share(found, 0.5) * 1000:.0f}, {judge.share(found, 0.99) * 1000:.0f}, "
            f"{max(found, default=0) * 1000:.0f} ms"
        )


def names(kind: str, count: int) -> list[str]:
    """Node names."""
    return [f"{kind}-{number:04}" for number in range(count)]


def spread(values: list[float]) -> str:
    """Least, median and most."""
    middle = judge.share(values, 0.5)
    return f"{min(values, default=0):.1f}, {middle:.1f}, {max(values, default=0):.1f} s"


async def play(plan: Plan, directory: Path, tell: Callable[[Phase], None]) -> Result:
    """Play the plan; journals are in memory if possible, since all nodes share this machine."""
    async with AsyncExitStack() as stack:
        data, other = directory / "redis", directory / "queue"
        data.mkdir()
        other.mkdir()
        stage = await stack.enter_async_context(scene(data, plan.program))
        queue_server: RedisServer = await stack.enter_async_context(redis_server(other))
        queue = await stack.enter_async_context(wandb_queue(queue_server.url))
        async with stage.client() as client:  # in use for long: nobody waits for it to settle
            await client.set(Keys(SWEEP).epoch, 1)
        everybody = [*names("node", plan.nodes), *names("fresh", plan.nodes // 10 + 1),
                     *names("spare", plan.wave)]  # fmt: skip
        orders = [
            Orders(url=stage.url, queue_url=queue_server.url, directory=str(directory / "j"),
                   nodes=everybody[number :: plan.processes], slots=plan.slots,
                   settings=plan.settings)
            for number in range(plan.processes)
        ]  # fmt: skip
        crew = await stack.enter_async_context(fleet(directory, orders))
        result = Result(await stage.name())
        await Play(plan, stage, crew, queue, result).run(tell)
    judge_result(result)
    return result


def judge_result(result: Result) -> None:
    """What must hold."""
    for phase in result.phases:
        if phase.duplicates:
            result.broken.append(f"{phase.name}: {phase.duplicates} duplicates")
        if phase.lost:
            result.broken.append(f"{phase.name}: {phase.lost} lost runs")
        if phase.clients.drops.get("FENCED"):
            result.broken.append(f"{phase.name}: {phase.clients.drops['FENCED']} fenced")


def scratch() -> str | None:
    """Where a play may put its files."""
    return quick_place()
