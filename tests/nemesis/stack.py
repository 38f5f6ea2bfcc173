"""One node of the short form, as a process of its own: a real lease keeper and small trainings.

Owns its slots, its keeper and the files `stays/TOKEN.json`. Does what the supervisor does: a claim
needs a lease, a training that is told to stop stops, a lease is released after its training is
gone, and a restarted stack adopts what lives. Started ahead of need: it waits for its orders on
standard input, since importing takes longer than a lease of the short form lasts.
"""

import json
import os
import signal
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from subprocess import DEVNULL, PIPE
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.errors import PeerError
from coordinator.leases import (
    Claim,
    Dropped,
    HolderState,
    Journal,
    Lease,
    LeaseKeeper,
    Leases,
    LeaseSettings,
    NoLeases,
)
from coordinator.supervisor.stays import start_time
from tests.nemesis.judge import read_stay

TRAINING = Path(__file__).with_name("training.py")
SWEEP = SweepPath("nemesis", "short", "form")
LOOK_SECONDS = 0.02
log = structlog.get_logger()


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a stack is told once, on standard input."""

    node: str
    url: str
    directory: str
    """Of this node; survives it."""
    records: str
    driver: str
    """Prefix of the driver's two sockets."""
    slots: int
    mode: str
    """"leases", "no-settling" or "no-leases"."""
    settings: dict[str, Any]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A training on disk, before it is told to go."""

    token: str
    run_id: str
    kind: CommandKind
    slot: int
    fence: int
    pid: int
    started: int
    """Clock ticks after the boot."""

    @property
    def lives(self) -> bool:
        """True while the very process is there."""
        return start_time(self.pid) == self.started

    @property
    def lease(self) -> Lease:
        """The lease under which it trains."""
        return Lease(self.run_id, self.kind, self.token, self.fence, self.slot)


@dataclass
class Living:
    """A training of this stack."""

    kept: Kept
    fenced: bool = False

    def send(self, signum: int) -> None:
        """Signal it, if it is still that process."""
        if self.kept.lives:
            with suppress(ProcessLookupError):
                os.kill(self.kept.pid, signum)


@dataclass
class Stack:
    """See the module."""

    orders: Orders
    leases: Leases = field(init=False)
    tasks: TaskGroup = field(init=False)
    backlog: deque[Claim] = field(default_factory=deque)
    living: dict[str, Living] = field(default_factory=dict)
    spares: dict[int, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        orders = self.orders
        self.root = Path(orders.directory)
        self.stays = self.root / "stays"
        self.stays.mkdir(parents=True, exist_ok=True)
        if orders.mode == "no-leases":
            self.leases = NoLeases(orders.node)
            return
        self.leases = LeaseKeeper(
            orders.url,
            SWEEP,
            orders.node,
            LeaseSettings(**orders.settings),
            self.root / "journal",
            self.on_fenced,
            self.on_stop,
            shared=orders.mode != "no-settling",
        )

    # --- life ---------------------------------------------------------------------------------
    async def run(self) -> None:
        """Until killed."""
        adopted = self.take_up()
        async with anyio.create_task_group() as self.tasks:
            self.tasks.start_soon(self.leases.run)
            for slot in range(self.orders.slots):
                mine = [living for living in adopted if living.kept.slot == slot]
                self.tasks.start_soon(self.serve, slot, mine)

    def take_up(self) -> list[Living]:
        """What the last stack of this node left: living trainings, ended ones, mere claims."""
        kept = [msgspec.json.decode(p.read_bytes(), type=Kept) for p in self.stays.glob("*.json")]
        ended = {stay.token: self.outcome(stay) for stay in kept if not stay.lives}
        begun = {stay.token for stay in kept if ended.get(stay.token) is not Outcome.LOST_CLAIM}
        entries, _ = Journal(self.root / "journal").load()
        for entry in entries:
            if entry.token not in begun and entry.state != "releasing":
                self.backlog.append(entry.claim)
                ended[entry.token] = Outcome.LOST_CLAIM
        adopted = [Living(stay) for stay in kept if stay.token not in ended]
        self.living = {living.kept.token: living for living in adopted}
        self.leases.adopt(self.living, ended)
        for stay in kept:
            if stay.token in ended:
                self.stay_file(stay.token).unlink(missing_ok=True)
        return adopted

    def outcome(self, stay: Kept) -> Outcome:
        """How a training that is gone has ended, by its own record."""
        own = read_stay(Path(self.orders.records, f"{stay.run_id}.{stay.pid}"))
        if own is None:
            return Outcome.LOST_CLAIM
        return Outcome.CRASHED if own.state == "alive" else Outcome(own.state)

    def stay_file(self, token: str) -> Path:
        """Where a training is kept."""
        return self.stays / f"{token}.json"

    # --- what the keeper asks -----------------------------------------------------------------
    async def on_fenced(self, lease: Lease) -> None:
        """Another owner exists."""
        living = self.living.get(lease.token)
        if living is None:
            await self.leases.forget(lease.token)
            return
        living.fenced = True
        living.send(signal.SIGKILL)

    async def on_stop(self, lease: Lease, _state: HolderState) -> None:
        """Stop within the stop budget."""
        living = self.living.get(lease.token)
        if living is None:
            return
        living.send(signal.SIGTERM)
        await anyio.sleep(float(self.orders.settings["stop_budget_seconds"]) / 2)
        living.send(signal.SIGKILL)

    # --- the slots ----------------------------------------------------------------------------
    async def serve(self, slot: int, adopted: list[Living]) -> None:
        """Finish what was adopted, then claim and train for ever."""
        for living in adopted:
            await self.see_through(living, None)
        async with await anyio.connect_unix(f"{self.orders.driver}.ask") as stream:
            lines = BufferedByteReceiveStream(stream)
            while True:
                while not self.leases.admits(None):  # noqa: ASYNC110 - the keeper has no event
                    await anyio.sleep(LOOK_SECONDS)
                claim = self.backlog.popleft() if self.backlog else await self.rescue(slot)
                if claim is None:
                    question = {"node": self.orders.node, "slot": slot}
                    await stream.send(msgspec.json.encode(question) + b"\n")
                    answer = json.loads(await lines.receive_until(b"\n", 65536))
                    if answer["run"] is None:
                        continue
                    kind = CommandKind(answer["kind"])
                    claim = Claim(answer["run"], kind, slot, "train.py", answer["args"])
                await self.turn(claim)

    async def rescue(self, slot: int) -> Claim | None:
        """A run that was dropped here or there and that nobody holds any more.

        One whose holder died without a word is left to the driver, which sees it as W&B would.
        """
        found = await self.leases.take()
        if found is None or found.lost:
            return None
        self.tell("rescued", run=found.run_id)
        return Claim(found.run_id, CommandKind.RESUME, slot, found.program, found.args)

    async def turn(self, claim: Claim) -> None:
        """One command: trained, dropped or put back."""
        try:
            answer = await self.leases.acquire(claim)
        except PeerError as error:
            log.warning("stack_claim_put_back", run_id=claim.run_id, problem=str(error))
            self.backlog.append(claim)
            return
        if isinstance(answer, Dropped):
            self.tell("dropped", run=claim.run_id, reason=answer.reason)
            return
        await self.train(answer, claim)

    async def train(self, lease: Lease, claim: Claim) -> None:
        """From the fork to the release."""
        orders = {
            **claim.args,
            "run": lease.run_id,
            "node": self.orders.node,
            "fence": lease.fence,
            "token": lease.token,
            "records": self.orders.records,
            "driver": f"{self.orders.driver}.tell",
        }
        process = self.spares.pop(lease.slot, None) or await self.hatch()
        kept = Kept(
            token=lease.token,
            run_id=lease.run_id,
            kind=lease.kind,
            slot=lease.slot,
            fence=lease.fence,
            pid=process.pid,
            started=start_time(process.pid) or 0,
        )
        path = self.stay_file(kept.token)
        scratch = path.with_suffix(".part")
        scratch.write_bytes(msgspec.json.encode(kept))
        scratch.replace(path)
        living = self.living[kept.token] = Living(kept)
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError):
            await process.stdin.send(json.dumps(orders).encode() + b"\n")
        self.spares[lease.slot] = await self.hatch()
        await self.see_through(living, process)

    async def hatch(self) -> Process:
        """A training that waits for its orders: its start must not take longer than a renewal."""
        command = [sys.executable, "-I", "-S", str(TRAINING)]
        return await anyio.open_process(
            command, stdin=PIPE, stdout=DEVNULL, stderr=None, start_new_session=True
        )

    async def see_through(self, living: Living, process: Process | None) -> None:
        """Wait for the end, then release. An adopted training is nobody's child."""
        if process is not None:
            await process.wait()
            await process.aclose()
        while living.kept.lives:  # noqa: ASYNC110 - it is not our child
            await anyio.sleep(LOOK_SECONDS)
        token = living.kept.token
        del self.living[token]
        if living.fenced:
            await self.leases.forget(token)
        else:
            outcome = await anyio.to_thread.run_sync(self.outcome, living.kept)
            await self.leases.release(token, outcome)
        self.stay_file(token).unlink(missing_ok=True)

    def tell(self, what: str, **more: object) -> None:
        """One word to the driver, as its registry would show it."""
        message = {"what": what, "node": self.orders.node, **more}
        with socket(AF_UNIX, SOCK_DGRAM) as sock, suppress(OSError):
            sock.sendto(json.dumps(message).encode(), f"{self.orders.driver}.tell")


def configure_log(stack: Stack) -> None:
    """Events go to a file, for people."""
    file = (stack.root / "events.jsonl").open("a", encoding="utf-8", buffering=1)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file),
    )


async def serve(orders: Orders) -> None:
    """One stack, until killed."""
    stack = Stack(orders)
    configure_log(stack)
    await stack.run()


def main() -> None:
    """Wait for the orders, then serve until killed."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if line:
        anyio.run(serve, msgspec.json.decode(line, type=Orders))


if __name__ == "__main__":
    main()
