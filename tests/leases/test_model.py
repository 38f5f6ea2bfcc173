"""The real scripts against the model on a virtual clock, and the promises that both must keep.

`COORDINATOR_MODEL_EXAMPLES` and `COORDINATOR_MODEL_STEPS` set the number of examples and the most
steps of each; `scripts/nemesis --long` raises both.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from coordinator.core.lease import Conflict
from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.leases import Lease
from coordinator.leases.answers import AcquireAnswer, Finished, Granted, Late, NotYet
from coordinator.leases.connection import open_client
from tests.leases.model import GRACE_MS, TTL_MS, Model
from tests.leases.virtual import FOREVER, START_MS, Virtual
from tests.support.redis import redis_server

EXAMPLES = int(os.environ.get("COORDINATOR_MODEL_EXAMPLES", "300"))
STEPS = int(os.environ.get("COORDINATOR_MODEL_STEPS", "40"))
_sweeps = count()

runs = st.sampled_from(["r0", "r1"])
nodes = st.sampled_from(["node-a", "node-b"])
chosen = st.integers(0, 30)
outcomes = st.sampled_from([None, Outcome.FINISHED, Outcome.PREEMPTED])
moments = st.sampled_from([0.001, 5.0, 10.0, 59.999, 60.0, 89.999, 90.0, 200.0])
jumps = st.sampled_from([-3600.0, -70.0, -0.5, 40.0])
steps = st.one_of(
    st.tuples(st.just("acquire"), runs, nodes, st.booleans(), st.booleans()),
    st.tuples(st.just("acquire"), runs, nodes, st.just(True), st.just(False)),
    st.tuples(st.just("again"), chosen),
    st.tuples(st.just("renew"), chosen),
    st.tuples(st.just("renew"), chosen),
    st.tuples(st.just("release"), chosen, outcomes),
    st.tuples(st.just("steal"), runs, st.booleans(), st.sampled_from(["", "node-b"])),
    st.tuples(st.just("advance"), moments),
    st.tuples(st.just("advance"), moments),
    st.tuples(st.just("jump"), jumps),
    st.tuples(st.just("wipe")),
    st.tuples(st.just("forget_scripts")),
)
Step = tuple[object, ...]


@dataclass
class Asked:
    """One claim as its node remembers it."""

    lease: Lease
    node: str
    kind: CommandKind
    valid_until: float = -1.0
    """Until when nobody else may hold the run, by the time that really passes."""


@dataclass
class World:
    """The real server and the model side by side."""

    v: Virtual
    model: Model
    claims: list[Asked] = field(default_factory=list)
    hints: dict[str, int] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    real_ms: float = 0.0
    jumped: bool = False
    wiped: bool = False

    async def step(self, step: Step) -> None:
        name, *rest = step
        await getattr(self, f"do_{name}")(*rest)

    def pick(self, index: int) -> Asked | None:
        return self.claims[index % len(self.claims)] if self.claims else None

    # --- steps --------------------------------------------------------------------------------
    async def do_acquire(self, run: str, node: str, resume: bool, late: bool) -> None:
        kind = CommandKind.RESUME if resume else CommandKind.RUN
        token = f"t{len(self.claims)}"
        self.claims.append(Asked(Lease(run, kind, token, 0, 0), node, kind))
        await self._ask(self.claims[-1], late=late)

    async def do_again(self, index: int) -> None:
        asked = self.pick(index)
        if asked is not None:
            await self._ask(asked, late=False)

    async def _ask(self, asked: Asked, *, late: bool) -> None:
        hint, lease = self.hints.get(asked.node, 0), asked.lease
        limit = self.v.now_ms - 1 if late else FOREVER
        _, answer = await self.v.acquire(
            lease.run_id,
            lease.token,
            node=asked.node,
            kind=asked.kind,
            hint=hint,
            not_after_ms=limit,
        )
        expected = self.model.acquire(
            lease.run_id,
            lease.token,
            asked.node,
            resume=asked.kind is CommandKind.RESUME,
            hint=hint,
            late=late,
        )
        assert flat(answer) == expected
        if isinstance(answer, Granted):
            self._granted(asked, answer)

    def _granted(self, asked: Asked, answer: Granted) -> None:
        run_id = asked.lease.run_id
        if answer.why != "again":
            self._check_promises(asked, answer)
        asked.lease = Lease(run_id, asked.kind, asked.lease.token, answer.fence, 0)
        asked.valid_until = self.real_ms + TTL_MS + GRACE_MS
        self.fences[run_id] = max(self.fences.get(run_id, 0), answer.fence)
        self._saw(asked.node, answer.fence)

    def _check_promises(self, asked: Asked, answer: Granted) -> None:
        if self.jumped:
            return
        run_id = asked.lease.run_id
        assert answer.fence > self.fences.get(run_id, 0), "fences grow, across a wipe too"
        unsettled = self.wiped and asked.kind is CommandKind.RUN
        others = [other for other in self.claims if other.lease.run_id == run_id]
        valid = [other for other in others if self.real_ms < other.valid_until]
        assert unsettled or not valid, "a second holder"

    async def do_renew(self, index: int) -> None:
        asked = self.pick(index)
        if asked is None or asked.lease.fence == 0:
            return
        lease = asked.lease
        (answer,) = await self.v.renew(lease, node=asked.node)
        expected = self.model.renew(lease.run_id, lease.token, asked.node, lease.fence)
        assert (answer.status.value, answer.fence) == expected
        if answer.status.value in {"ok", "reasserted"}:
            asked.valid_until = self.real_ms + TTL_MS + GRACE_MS
        else:
            asked.valid_until = -1.0
        self._saw(asked.node, answer.fence)

    async def do_release(self, index: int, outcome: Outcome | None) -> None:
        asked = self.pick(index)
        if asked is None:
            return
        lease = asked.lease
        status = await self.v.release(lease, outcome, node=asked.node)
        word = "" if outcome is None else outcome.value
        expected = self.model.release(lease.run_id, lease.token, asked.node, lease.fence, word)
        assert status.value == expected
        asked.valid_until = -1.0

    async def do_steal(self, run: str, right: bool, target: str) -> None:
        record = self.model.records.get(run)
        fence = record.fence if record and right else 1
        answer = await self.v.store("operator").steal(
            run, fence, after_seconds=40.0, target=target, why="test"
        )
        assert (answer.status.value, answer.fence) == self.model.steal(run, fence, 40_000, target)
        if answer.status.value == "freed":
            for asked in self.claims:
                if asked.lease.run_id == run:
                    asked.valid_until = -1.0

    async def do_advance(self, seconds: float) -> None:
        self.real_ms += seconds * 1000
        await self._move(seconds)

    async def do_jump(self, seconds: float) -> None:
        self.jumped = True
        await self._move(seconds)

    async def _move(self, seconds: float) -> None:
        await self.v.advance(seconds)
        self.model.now = self.v.now_ms

    async def do_wipe(self) -> None:
        # Time passes: a node that saw no fence before the wipe gets its first from the clock alone,
        # so fences grow only if the clock has passed those that were given out within one tick.
        self.wiped = True
        self.real_ms += 1000
        await self.v.client.flushall()
        self.model.wipe()
        await self._move(1.0)

    async def do_forget_scripts(self) -> None:
        await self.v.client.script_flush()

    def _saw(self, node: str, fence: int) -> None:
        self.hints[node] = max(self.hints.get(node, 0), fence)


def flat(answer: AcquireAnswer) -> tuple[object, ...]:
    """An answer in the words of the model."""
    match answer:
        case Granted(fence, why):
            return ("granted", fence, why)
        case Finished(node):
            return ("finished", node)
        case NotYet(seconds, _):
            return ("not_yet", round(seconds * 1000))
        case Conflict():
            times = (answer.age_seconds, answer.silent_seconds, answer.claimable_in_seconds)
            return ("held", answer.holder, answer.fence, *(round(t * 1000) for t in times))
        case Late():
            return ("late",)
        case _:
            return ("void",)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[Step]], None]]:
    """Plays one example on a private server that it may wipe."""
    with asyncio.Runner() as runner, private_redis(runner, tmp_path_factory) as client:

        def play_one(example: list[Step]) -> None:
            runner.run(_play(client, example))

        yield play_one


@contextmanager
def private_redis(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Redis]:
    """A server that lives as long as the loop of `runner` is asked now and then."""
    context = redis_server(tmp_path_factory.mktemp("m"))
    server = runner.run(context.__aenter__())
    client = open_client(server.url, timeout_seconds=10, connections=1)
    assert isinstance(client, Redis)
    try:
        yield client
    finally:
        runner.run(client.aclose())
        runner.run(context.__aexit__(None, None, None))


async def _play(client: Redis, example: list[Step]) -> None:
    v = Virtual(client, SweepPath("ent", "proj", f"m{next(_sweeps)}"))
    await v.client.flushall()
    await v.set(START_MS)
    world = World(v, Model(START_MS))
    with anyio.fail_after(60):
        for step in example:
            await world.step(step)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(example=st.lists(steps, min_size=10, max_size=STEPS))
def test_the_scripts_do_what_the_model_says(
    play: Callable[[list[Step]], None], example: list[Step]
) -> None:
    play(example)
