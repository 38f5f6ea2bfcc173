"""A pool with trainings whose shims are the test's: real sockets, no processes.

Owns the sockets of one test. Nothing here is a test.
"""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from aiohttp import ClientSession
from anyio.abc import SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.core.model import CommandKind, SlotState, SweepState
from coordinator.core.rescue import Policy
from coordinator.core.shim_protocol import Hello
from coordinator.leases import Claim, Lease, NoLeases
from coordinator.process.kernel import Kernel
from coordinator.supervisor.agent import Agent
from coordinator.supervisor.agents import Agents, AgentSettings
from coordinator.supervisor.claims import Claims
from coordinator.supervisor.commands import Commands
from coordinator.supervisor.endings import Endings
from coordinator.supervisor.history import History
from coordinator.supervisor.level import Level
from coordinator.supervisor.pool import Pool, PoolSettings
from coordinator.supervisor.prospects import Prospects
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.revival import Revival
from coordinator.supervisor.shims import ShimLink, Shims
from coordinator.supervisor.slot import Services, Slot, SlotSettings
from coordinator.supervisor.stays import StayFiles
from coordinator.supervisor.sweep import SweepWatch
from coordinator.supervisor.sweep_commands import SweepCommands
from coordinator.supervisor.training import Order, Training
from coordinator.supervisor.trainings import Trainings
from coordinator.supervisor.undelivered import Undelivered
from coordinator.supervisor.views import Names, Views
from coordinator.supervisor.wanted import Wanted, WantedFile
from coordinator.wandb_account import Account, Login
from coordinator.wandb_account.sweep_command import SweepCommand
from tests.supervisor.stage import SECONDS, SWEEP, command, executing, guards

GRACE_SECONDS = 3600.0
NOBODY = "http://127.0.0.1:1"


@dataclass
class Shim:
    """The test's end of one training."""

    training: Training
    stream: SocketStream
    lines: BufferedByteReceiveStream

    async def told(self) -> dict[str, Any]:
        """The next thing that the daemon says to it."""
        with anyio.fail_after(SECONDS):
            message: dict[str, Any] = json.loads(await self.lines.receive_until(b"\n", 65536))
        return message


@dataclass
class Node:
    """A node whose loop does not run, so that what was asked for can be looked at."""

    pool: Pool
    commands: Commands
    slot_settings: SlotSettings
    folder: Path
    group: TaskGroup
    streams: list[SocketStream] = field(default_factory=list)

    def add_slot(self, number: int) -> Slot:
        slot = Slot(number, self.slot_settings, self.pool.services)
        self.pool.slots[number] = slot
        return slot

    async def leased(self, number: int, run_id: str) -> tuple[Slot, Lease]:
        """A slot, and the lease of a run for it."""
        claim = Claim(run_id, CommandKind.RUN, number, "t.py", {})
        lease = await self.pool.services.leases.acquire(claim)
        assert isinstance(lease, Lease)
        return self.add_slot(number), lease

    async def train(self, number: int, run_id: str) -> Shim:
        """A training that has been told to start."""
        services = self.pool.services
        slot, lease = await self.leased(number, run_id)
        agent = Agent(number, f"token{number}", self.folder / f"agent-{number}.log")
        training = Training(number, command(run_id), lease, agent, claim=f"claim{number}",
                            began="", closing=services.leases.closing,
                            kernel=services.kernel)  # fmt: skip
        links: list[ShimLink] = []

        async def expect() -> None:
            links.append(await services.shims.expect(agent.token, run_id))

        async with anyio.create_task_group() as group:
            group.start_soon(expect)
            await anyio.wait_all_tasks_blocked()
            stream = await anyio.connect_unix(services.shims.path)
            self.streams.append(stream)
            hello = Hello(agent.token, run_id, 1, None, [], "/")
            await stream.send(json.dumps({"say": "hello", **_fields(hello)}).encode() + b"\n")
        services.trainings.put(training)
        slot.agent, slot.run_id = agent, run_id
        slot.state = SlotState.RUNNING
        order = Order({}, 1.0, self.folder / "exit.json")
        self.group.start_soon(training.run, links[0], order)
        shim = Shim(training, stream, BufferedByteReceiveStream(stream))
        assert (await shim.told())["do"] == "go"
        return shim


def _fields(hello: Hello) -> dict[str, Any]:
    return {name: getattr(hello, name) for name in hello.__struct_fields__}


@asynccontextmanager
async def node(folder: Path, slots: int = 2) -> AsyncIterator[Node]:
    """Everything that a pool knows, put together as the daemon does it."""
    changed, leases = Level(), NoLeases("a")
    guarded = guards(folder, changed)
    files = StayFiles(folder, folder)
    settings = PoolSettings(slots, 1, until_done=False, grace_seconds=GRACE_SECONDS,
                            storm_seconds=2.0, idle_timeout_seconds=0.0,
                            preempt_signal=signal.SIGUSR2)  # fmt: skip
    slot_settings = SlotSettings(60.0, 1.0, GRACE_SECONDS, 5.0, files, lambda _kind, _slot: {})
    async with ClientSession() as session, anyio.create_task_group() as group:
        account = Account(Login(NOBODY, "k" * 40, key_from_environment=True), session)
        policy = Policy(enabled=False, on=frozenset(), max_attempts=1, backoff_seconds=1.0)
        kept = Undelivered(folder / "undelivered.json")
        rescues = Rescues(policy, leases, account, SWEEP, kept, patience_seconds=1.0)
        command = SweepCommand("false", SWEEP, {}, folder)
        revival = Revival(account, SWEEP, leases, command, enabled=False)
        sweep = SweepWatch(account, SWEEP, SweepState.RUNNING, changed, revival)
        claims = Claims(5.0, _nothing_to_rescue, sweep.ended, guarded, rest=anyio.sleep,
                        kept=kept)  # fmt: skip
        prospects = Prospects(sweep, rescues, lambda: bool(claims.undelivered))
        agents = Agents(AgentSettings(SWEEP, {}, folder, lambda token: f"{NOBODY}/a/{token}"),
                        executing(Path("wandb"), {}, folder), changed=changed,
                        refused=sweep.ended, guards=guarded, welcome=lambda: False,
                        group=group)  # fmt: skip
        endings = Endings(node="a", sweep=SWEEP, account=account, leases=leases,
                          history=History(folder / "runs.jsonl"), stays=files, rescues=rescues,
                          changed=changed, guards=guarded, requeued=sweep.ended,
                          linger=_gone_already, group=group)  # fmt: skip
        shims = Shims(folder / "shim.sock")
        services = Services(agents, claims, shims, leases, Trainings(), changed, guarded,
                            endings.begin, Kernel())  # fmt: skip
        pool = Pool(settings=settings, slot_settings=slot_settings, services=services,
                    sweep=sweep, endings=endings, rescues=rescues, prospects=prospects,
                    wanted=Wanted(configured_slots=slots, slots=slots))  # fmt: skip
        names = Names("a", str(SWEEP), "off", embedded=False, upstream=NOBODY, gpus=(),
                      gpus_per_slot=1)  # fmt: skip
        views = Views(names, pool, History(folder / "runs.jsonl"))
        await group.start(shims.run)
        found = Node(
            pool,
            Commands(
                pool,
                views,
                SweepCommands(pool, command, graceful=False),
                WantedFile(folder / "wanted.json"),
            ),
            slot_settings,
            folder,
            group,
        )
        try:
            yield found
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for stream in found.streams:
                    await stream.aclose()


async def _nothing_to_rescue() -> None:
    return None


async def _gone_already(_agent: Agent) -> None:
    """The agents of these trainings never were."""
