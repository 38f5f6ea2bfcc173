"""The ways of running trainings on slots that are compared: ours and two without a coordinator.

Owns their processes, each way on an emulator of its own with the same sweep, so that the cost of a
training and the state of the server are the same for all. How agents are started is the business
of each way; nothing is read here but what trainings record. Everything ends with the block.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from tests.support.emulator import Emulator, start_emulator, wait_until
from tests.support.node import MARK, REPOSITORY, Node, marked

TRAINING = Path(__file__).with_name("training.py")
OURS = "ours"
AGENT = "bare agent"
LOOP = "loop"
LOOP_SCRIPT = 'while wandb agent --count 1 "$0"; do :; done'
"""As W&B's pages have it; it ends when the sweep does, since the agent is refused then."""
NO_GUARDS = ("--set", "rescue.enabled=false", "--set", "breaker.enabled=false")
"""For trainings that never call wandb.init(): without that, they are failures of a bad node."""
ENOUGH_RUNS = 2000
POLL_SECONDS = 5.0
GOLDEN = 0.6180339887


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained; `low` and `high` are the seconds of the shortest and longest run."""

    slots: int
    low: float
    high: float
    wandb: bool = True
    runs: int = ENOUGH_RUNS
    parameters: Mapping[str, float] = field(default_factory=dict)

    def sweep(self) -> dict[str, Any]:
        """The configuration of the sweep."""
        values = {"low": self.low, "high": self.high, "wandb": int(self.wandb), **self.parameters}
        return {
            "program": str(TRAINING),
            "method": "grid",
            "parameters": {
                "n": {"values": list(range(self.runs))},
                **{name: {"value": value} for name, value in values.items()},
            },
        }


class Way(Protocol):
    """One way."""

    started_at: float
    """Just before its first process was started, on the monotonic clock."""

    @property
    def pids(self) -> list[int]:
        """The processes that were started, without those below them."""

    def start(self) -> object:
        """Start it."""

    def records(self, what: str | None = None) -> list[dict[str, Any]]:
        """What its trainings have recorded."""

    def ended(self) -> bool:
        """Whether all of it has ended by itself; an error when it failed."""

    def end(self) -> None:
        """End whatever is left."""


class Ours(Node):
    """A real coordinatord with its own Redis; every other method is the node's."""

    started_at: float = 0.0

    def start(self, *flags: str) -> "Ours":
        """See `Way`."""
        self.started_at = monotonic()
        super().start(*flags)
        return self

    @property
    def pids(self) -> list[int]:
        """See `Way`."""
        return [] if self.process is None else [self.process.pid]

    def ended(self) -> bool:
        """See `Way`."""
        code = None if self.process is None else self.process.poll()
        assert not code, f"coordinatord ended with {code}: {self.tail()[-500:]}"
        return code == 0


class Bare:
    """One agent, or one loop, for each slot."""

    def __init__(self, command: list[str], emulator: Emulator, directory: Path, slots: int) -> None:
        """`command` gets the sweep's path as its last word."""
        self._command = command
        self._directory = directory
        self._slots = slots
        self._mark = uuid.uuid4().hex
        self._env = {
            **emulator.environment(directory / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "RECORDS": str(directory / "records.jsonl"),
            MARK: self._mark,
        }
        self._node = Node("bare", emulator, directory, "")
        self.started_at = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """See `Way`."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """See `Way`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self.started_at = monotonic()
        self.add(self._slots)

    def add(self, count: int) -> None:
        """Start so many more."""
        for _ in range(count):
            slot = len(self._processes)
            with (self._directory / f"slot-{slot}.log").open("wb") as log:
                self._processes.append(subprocess.Popen(
                    self._command, env={**self._env, "BENCH_SLOT": str(slot)},
                    cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                ))  # fmt: skip

    def records(self, what: str | None = None) -> list[dict[str, Any]]:
        """See `Way`."""
        return self._node.records(what)

    def ended(self) -> bool:
        """See `Way`; a loop always ends with a refused agent, so its exit code says nothing."""
        return all(process.poll() is not None for process in self._processes)

    def end(self) -> None:
        """See `Way`."""

        def none_left() -> bool:
            for pid in (left := marked(self._mark)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_until("no process of the bare agents is left", none_left, 30)
        for process in self._processes:
            process.wait()


def make(name: str, emulator: Emulator, directory: Path, job: Job, flags: tuple[str, ...]) -> Way:
    """The way `name` for a job; `flags` are for coordinatord."""
    sweep = emulator.create_sweep(job.sweep())
    if name == OURS:
        guards = () if job.wandb else NO_GUARDS
        return Ours("n", emulator, directory, sweep,
                    ("--slots", str(job.slots), *guards, *flags))  # fmt: skip
    agent = str(Path(sys.executable).with_name("wandb"))
    command = [agent, "agent", sweep] if name == AGENT else ["bash", "-c", LOOP_SCRIPT, sweep]
    return Bare(command, emulator, directory, job.slots)


def phase(number: int) -> float:
    """Seconds to wait before the act `number`, evenly spread over what agents pause between looks.

    Acts that always came at the same moment of somebody's poll would say more of that moment.
    """
    return POLL_SECONDS * (number * GOLDEN % 1.0)


@contextmanager
def playing(
    name: str,
    directory: Path,
    job: Job,
    *flags: str,
    prepare: Callable[[Emulator], None] = lambda _: None,
) -> Iterator[tuple[Way, Emulator]]:
    """One way at work on a fresh server; all of it is ended with the block.

    `prepare` is told of the server before anything else is.
    """
    emulator = start_emulator(directory / "emulator")
    try:
        prepare(emulator)
        way = make(name, emulator, directory / "p", job, flags)
        try:
            way.start()
            yield way, emulator
        finally:
            way.end()
    finally:
        emulator.stop()


def wait_for(way: Way, what: str, probe: Callable[[], object], seconds: float) -> None:
    """Until `probe` is true; an error when the way ends before."""

    def either() -> bool:
        return bool(probe()) or (way.ended() and not probe())

    wait_until(what, either, seconds)
    assert probe(), f"it ended before: {what}"
