"""The world of the short form: one Redis, a proxy and a stack for each node, the driver.

Owns every process that it starts and ends all of them, trainings included, by their mark. It must
never judge.
"""

import os
import random
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE

import anyio
import msgspec
from anyio.abc import Process

from coordinator.core.lease import LeaseSettings
from coordinator.leases.keys import Keys
from tests.nemesis.clock import JumpingClock, build_clock
from tests.nemesis.driver import Driver
from tests.nemesis.place import Place
from tests.nemesis.stack import SWEEP, Orders
from tests.support.node import MARK, REPOSITORY, marked
from tests.support.redis import FaultProxy, RedisServer, redis_program, redis_server

NODES = ("node-a", "node-b", "node-c")
SLOTS = 4
SETTINGS = LeaseSettings(
    ttl_seconds=1.9,
    renew_seconds=0.3,
    grace_seconds=0.8,
    handoff_seconds=0.8,
    race_window_seconds=0.2,
    timeout_seconds=0.45,
    stop_budget_seconds=0.3,
)
"""The defaults divided by some thirty; a loaded machine of two cores cannot keep shorter ones."""
SLACK_SECONDS = 0.3
"""What a loaded machine of two cores may hold up a process."""


def quick_place() -> str | None:
    """Memory if possible: a disk that stalls would be a fault that nobody asked for."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Member:
    """One node: its present process and the one that stands ready to follow it."""

    process: Process | None = None
    spare: Process | None = None


@dataclass
class World(Place):
    """See the module."""

    directory: Path
    redis: RedisServer
    driver: Driver
    mode: str
    settings: LeaseSettings
    clock: JumpingClock | None
    proxies: dict[str, FaultProxy] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    slots: int = SLOTS * len(NODES)
    slack_seconds: float = SLACK_SECONDS

    @property
    def records(self) -> Path:
        """Where the trainings keep their records."""
        return self.directory / "records"

    def disturb(self, *, on: bool) -> None:
        """See `Place`."""
        self.driver.disturbed = on

    async def rehand(self, node: str | None = None) -> None:
        """See `Place`."""
        self.driver.rehand(node)

    # --- stacks -------------------------------------------------------------------------------
    def send(self, node: str, signum: int) -> None:
        """See `Place`."""
        process = self.members[node].process
        assert process is not None
        if process.returncode is None:
            os.kill(process.pid, signum)

    async def start(self, node: str) -> None:
        """Let the spare process be the node's stack."""
        member = self.members[node]
        spare = await self._ready(member)
        orders = Orders(
            node=node,
            url=self.proxies[node].url,
            directory=str(self.directory / node),
            records=str(self.records),
            driver=str(self.driver.prefix),
            slots=SLOTS,
            mode=self.mode,
            settings=asdict(self.settings),
        )
        member.process, member.spare = spare, None
        assert spare.stdin is not None
        await spare.stdin.send(msgspec.json.encode(orders) + b"\n")

    async def prepare(self, node: str) -> None:
        """Have a spare process ready."""
        member = self.members[node]
        member.spare = await self._ready(member)

    async def _ready(self, member: Member) -> Process:
        if member.spare is not None:
            return member.spare
        command = [sys.executable, "-m", "tests.nemesis.stack"]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), MARK: self.mark}
        process = await anyio.open_process(
            command, stdin=PIPE, stdout=PIPE, stderr=None, env=env, start_new_session=True
        )
        assert process.stdout is not None
        with anyio.fail_after(60):
            await process.stdout.receive()
        return process

    async def kill(self, node: str) -> None:
        """See `Place`."""
        self.send(node, signal.SIGKILL)
        self.driver.killed[node] = anyio.current_time()
        process = self.members[node].process
        assert process is not None
        await process.wait()

    @property
    def fallen(self) -> list[str]:
        """Nodes whose stack ended by itself."""
        items = self.members.items()
        return [name for name, m in items if m.process and m.process.returncode is not None]

    async def end(self) -> None:
        """End everything that carries our mark."""
        while living := marked(self.mark):
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await anyio.sleep(0.05)
        for member in self.members.values():
            for process in filter(None, (member.process, member.spare)):
                await process.aclose()


@asynccontextmanager
async def open_world(
    directory: Path, *, seed: int, mode: str, settings: LeaseSettings = SETTINGS, long: bool = False
) -> AsyncIterator[World]:
    """A running world; everything of it is gone afterwards, its files excepted.

    With `long` most trainings outlive a long fault, so that there is something to overlap with.
    """
    for name in ("redis", "records", *NODES):
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).mkdir(parents=True)
    clock = build_clock(directory)
    program = redis_program() if clock is None else clock.program(redis_program())
    options = ["--appendonly", "yes", "--appendfsync", "no", "--enable-debug-command", "yes"]
    lapse = 3 * settings.settle_seconds
    driver = Driver(
        directory / "d", random.Random(seed), 9, (1.0, 9.0) if long else (0.1, 1.5), lapse
    )
    async with AsyncExitStack() as stack:
        server = redis_server(directory / "redis", *options, program=program)
        redis = await stack.enter_async_context(server)
        await stack.enter_async_context(driver.serve())
        world = World(directory, redis, driver, mode, settings, clock)
        try:
            for name in NODES:
                proxy = await stack.enter_async_context(FaultProxy(redis.socket).serve())
                world.proxies[name], world.members[name] = proxy, Member()
            async with world.admin() as client:
                await client.set(Keys(SWEEP).epoch, 1)  # a Redis that has long been in use
            async with anyio.create_task_group() as tasks:
                for name in NODES:
                    tasks.start_soon(world.start, name)
            yield world
        finally:
            with anyio.CancelScope(shield=True):
                await world.end()
