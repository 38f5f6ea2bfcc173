"""The driver: a sweep server at its worst, for the short form.

Owns the runs and who was given them. Hands out new runs, hands a re-queued one to whoever asks
within a window, and now and then one that is alive. Learns of the trainings from themselves, as
W&B does. It must never ask a lease layer who holds what.
"""

import json
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.core.model import CommandKind
from coordinator.supervisor.stays import start_time

TICK_SECONDS = 0.02
ASK_SECONDS = 0.3


@dataclass(slots=True)
class Given:
    """A command that was handed out and of which nothing was heard yet."""

    node: str
    at: float


@dataclass(slots=True)
class Run:
    """One run as the server sees it."""

    run_id: str
    queued: bool = False
    finished: bool = False
    begun: bool = False
    living: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Node and start time of each process that reported its begin and not its end."""
    given: list[Given] = field(default_factory=list)
    open_until: float = 0.0
    """Until then it is given to whoever asks."""
    idle_since: float = 0.0
    """Since when it is in nobody's hands."""


@dataclass(slots=True)
class Tally:
    """What the driver counts."""

    handed_out: int = 0
    duplicates: int = 0
    dropped: int = 0
    rescued: int = 0
    """Commands that came from the rescue queue."""
    lapsed: int = 0
    """Commands that died with their stack."""
    crashed: int = 0
    lost: list[tuple[float, str]] = field(default_factory=list)
    """When a run was given out that nobody trained and nobody reported."""


@dataclass
class Driver:
    """See the module; `prefix` names the two sockets."""

    prefix: Path
    rng: random.Random
    most_runs: int
    stay_seconds: tuple[float, float]
    lapse_seconds: float
    draining: bool = False
    disturbed: bool = False
    """While a fault acts nothing lapses."""
    quiet_since: float = 0.0
    """When the last fault was over."""
    runs: dict[str, Run] = field(default_factory=dict)
    queue: deque[str] = field(default_factory=deque)
    tally: Tally = field(default_factory=Tally)
    killed: dict[str, float] = field(default_factory=dict)
    """When each node's stack was last killed."""

    # --- what the play asks -------------------------------------------------------------------
    def rehand(self, node: str | None = None) -> None:
        """Take the living runs of `node` (None: of all) for dead and give them to anybody."""
        for run in self.runs.values():
            if any(node in {None, owner} for owner, _ in run.living.values()):
                run.open_until = monotonic() + 1.0
                self.enqueue(run)

    @property
    def unfinished(self) -> list[str]:
        """Runs that were given out and have not finished."""
        return [run.run_id for run in self.runs.values() if not run.finished]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Driver"]:
        """Answer and listen while the context lasts."""
        ask = await anyio.create_unix_listener(f"{self.prefix}.ask")
        tell = await anyio.create_unix_datagram_socket(local_path=f"{self.prefix}.tell")
        async with ask, tell, anyio.create_task_group() as tasks:
            tasks.start_soon(ask.serve, self._answer)
            tasks.start_soon(self._watch)

            async def listen() -> None:
                async for data, _ in tell:
                    self._hear(json.loads(data))

            tasks.start_soon(listen)
            yield self
            tasks.cancel_scope.cancel()

    # --- questions ----------------------------------------------------------------------------
    async def _answer(self, stream: SocketStream) -> None:
        lines = BufferedByteReceiveStream(stream)
        async with stream:
            with suppress(anyio.IncompleteRead, anyio.BrokenResourceError, anyio.EndOfStream):
                while True:
                    question = json.loads(await lines.receive_until(b"\n", 65536))
                    run = await self._find(question["node"])
                    if run is None:
                        await stream.send(b'{"run": null}\n')
                    else:
                        await self._give(stream, run, question["node"])

    async def _find(self, node: str) -> Run | None:
        """A run; None after a while, so that whoever asks can look elsewhere."""
        found = self._pick(node)
        with anyio.move_on_after(ASK_SECONDS):
            while found is None:
                await anyio.sleep(TICK_SECONDS)
                found = self._pick(node)
        return found

    def _pick(self, node: str) -> Run | None:
        while self.queue:
            run = self.runs[self.queue.popleft()]
            run.queued = False
            if not run.finished:
                return run
        now = monotonic()
        others = [
            run
            for run in self.runs.values()
            if not run.finished
            and (now < run.open_until or (run.living and self.rng.random() < 0.0005))
            and all(given.node != node for given in run.given)
        ]
        if others:
            self.tally.duplicates += 1
            return self.rng.choice(others)
        if self.draining or len(self.unfinished) >= self.most_runs:
            return None
        run = Run(f"r{len(self.runs)}")
        self.runs[run.run_id] = run
        return run

    async def _give(self, stream: SocketStream, run: Run, node: str) -> None:
        self.tally.handed_out += 1
        run.given.append(Given(node, monotonic()))
        kind = CommandKind.RESUME if run.begun else CommandKind.RUN
        ending = self.rng.choices(["preempted", "finished", "crashed"], [6, 3, 1])[0]
        args = {
            "seconds": 0.05 if self.draining else self.rng.uniform(*self.stay_seconds),
            "ending": "finished" if self.draining else ending,
            "closing": self.rng.choice([0.0, 0.05, 0.2]),
        }
        command = {"run": run.run_id, "kind": kind, "args": args}
        try:
            await stream.send(json.dumps(command).encode() + b"\n")
        except anyio.BrokenResourceError:
            self._taken(run, node)
            self.enqueue(run)
            raise

    # --- news ---------------------------------------------------------------------------------
    def _hear(self, word: dict[str, Any]) -> None:
        run = self.runs[word["run"]]
        match word["what"]:
            case "begin":
                self._taken(run, word["node"])
                run.begun = True
                run.living[word["pid"]] = (word["node"], start_time(word["pid"]) or 0)
            case "end":
                run.living.pop(word["pid"], None)
                run.finished = run.finished or word["state"] == "finished"
                self._again(run)
            case "dropped":
                self.tally.dropped += 1
                self._taken(run, word["node"])
                run.idle_since = monotonic()
            case "rescued":
                self.tally.rescued += 1
                run.given.append(Given(word["node"], monotonic()))
            case _:
                raise AssertionError(word)

    def _taken(self, run: Run, node: str) -> None:
        mine = [given for given in run.given if given.node == node]
        if mine:
            run.given.remove(mine[0])

    def _again(self, run: Run) -> None:
        """Queue it, unless it lives; now and then for everybody."""
        run.idle_since = monotonic()
        if run.finished or run.living:
            return
        if self.rng.random() < 0.5:
            run.open_until = monotonic() + 0.3
        self.enqueue(run)

    def enqueue(self, run: Run) -> None:
        """Hand it out next."""
        if not run.queued and not run.finished:
            run.queued = True
            self.queue.append(run.run_id)

    # --- silence ------------------------------------------------------------------------------
    async def _watch(self) -> None:
        while True:
            before = monotonic()
            await anyio.sleep(5 * TICK_SECONDS)
            if monotonic() - before > 1.0:  # the machine stood still, so nobody is to blame
                self.quiet_since = monotonic()
            for run in self.runs.values():
                self._look(run, monotonic())

    def _look(self, run: Run, now: float) -> None:
        for pid, (_, started) in list(run.living.items()):
            if start_time(pid) != started:
                del run.living[pid]
                self.tally.crashed += 1
                self._again(run)
        if run.finished or run.living or run.queued:
            return
        if self.disturbed:
            self.quiet_since = now
        else:
            self._lapse(run, now)

    def _lapse(self, run: Run, now: float) -> None:
        """A command of which nothing is heard, or a run that was dropped and that nobody has."""
        limit = now - self.lapse_seconds
        stale = [given for given in run.given if max(given.at, self.quiet_since) < limit]
        idle = max(run.idle_since, self.quiet_since) < limit
        if len(stale) < len(run.given) or not (stale or idle):
            return
        excused = any(given.at < self.killed.get(given.node, 0.0) for given in stale)
        if excused:
            self.tally.lapsed += 1
        else:
            self.tally.lost.append((now, run.run_id))
        run.given.clear()
        self.enqueue(run)
