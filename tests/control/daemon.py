"""A real control server with a scripted handler, for the tests of both ends of the socket."""

import atexit
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from subprocess import PIPE, Popen  # noqa: TID251 - for what outlives one test's event loop
from typing import Any

import anyio
import anyio.abc
import msgspec

from coordinator.control import LogLine, serve
from coordinator.core.model import CommandKind, NodeState, Outcome, SlotState
from coordinator.core.protocol import (
    Answer,
    Done,
    GetLeases,
    GetRuns,
    GetStatus,
    LeaseView,
    RedisView,
    RequestUnion,
    RunView,
    SlotView,
    StatusView,
    UpstreamView,
)
from coordinator.errors import UserError
from coordinator.telemetry import Telemetry

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def slot(
    number: int, state: SlotState, run_id: str | None = None, *, draining: bool = False
) -> SlotView:
    return SlotView(
        slot=number,
        state=state,
        run_id=run_id,
        pid=4000 + number if run_id else None,
        agent_pid=5000 + number if run_id else None,
        gpus=[str(number)],
        since="2026-01-02T03:04:05Z",
        draining=draining,
    )


def status(
    *slots: SlotView,
    state: NodeState = NodeState.RUNNING,
    desired: int | None = None,
    degraded: tuple[str, ...] = (),
) -> StatusView:
    return StatusView(
        node="node-1",
        sweep="entity/project/abc123",
        state=state,
        desired_slots=len(slots) if desired is None else desired,
        slots=list(slots),
        warm_agents=1,
        redis=RedisView("ok", "redis://127.0.0.1:6379", embedded=True, leases_held=1),
        upstream=UpstreamView("ok", "http://127.0.0.1:1", "RUNNING"),
        version="0.1.0",
        pid=1234,
        started="2026-01-02T03:04:05Z",
        degraded=list(degraded),
    )


RUN = RunView(
    run_id="run1",
    slot=0,
    kind=CommandKind.RUN,
    node="node-1",
    outcome=Outcome.CRASHED,
    exit_code=None,
    signal="SIGSEGV",
    started="2026-01-02T03:04:05Z",
    ended="2026-01-02T03:07:17Z",
    pid=77,
    fence=5,
)
LEASE = LeaseView(
    run_id="run1",
    owner="node-2",
    slot=1,
    fence=9,
    state="held",
    kind=CommandKind.RESUME,
    age_seconds=62.5,
    expires_in_seconds=51.0,
)


@dataclass
class Daemon:
    """What the daemon was asked, and what it answers."""

    socket: Path
    telemetry: Telemetry
    view: StatusView = field(default_factory=lambda: status(slot(0, SlotState.RUNNING, "run1")))
    asked: list[RequestUnion] = field(default_factory=list)
    answer: Answer = field(default_factory=lambda: Done("as you say"))
    on_command: Callable[[RequestUnion], Awaitable[None]] | None = None
    log_lines: list[LogLine] = field(default_factory=list)
    new_log_line: anyio.Event = field(default_factory=anyio.Event)
    log_queries: list[tuple[str | None, int, bool]] = field(default_factory=list)
    logs_asked: anyio.Event = field(default_factory=anyio.Event)
    log_reader_closed: anyio.Event = field(default_factory=anyio.Event)
    added: dict[str, Any] = field(default_factory=dict)
    """Fields of the status that this version does not know."""
    looks_answer: Answer | None = None
    """Instead of the status."""
    looks: int = 0
    looked: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def handle(self, request: RequestUnion) -> Answer:
        match request:
            case GetStatus():
                self.looks += 1
                looked, self.looked = self.looked, anyio.Event()
                looked.set()
                view = Done(data={**msgspec.to_builtins(self.view), **self.added})
                return self.looks_answer or view
            case GetRuns():
                self.asked.append(request)
                return Done(data=[RUN])
            case GetLeases():
                self.asked.append(request)
                return Done(data=[LEASE])
            case _:
                self.asked.append(request)
                if self.on_command is not None:
                    await self.on_command(request)
                return self.answer

    async def logs(self, target: str | None, count: int, follow: bool) -> AsyncIterator[LogLine]:
        self.log_queries.append((target, count, follow))
        self.logs_asked.set()
        if target == "nowhere":
            raise UserError("there is no slot or run 'nowhere'")
        try:
            for line in self.log_lines[-count:] if count else []:
                yield line
            sent = len(self.log_lines)
            while follow:
                await self.new_log_line.wait()
                for line in self.log_lines[sent:]:
                    yield line
                sent = len(self.log_lines)
        finally:
            self.log_reader_closed.set()

    def print_line(self, line: LogLine) -> None:
        self.log_lines.append(line)
        waiting, self.new_log_line = self.new_log_line, anyio.Event()
        waiting.set()

    async def looked_at(self, times: int) -> None:
        """Return once the status was asked for `times` more times."""
        enough = self.looks + times
        while self.looks < enough:
            await self.looked.wait()

    async def stop(self) -> None:
        self.scope.cancel()
        with anyio.fail_after(20):
            await self.ended.wait()

    async def run(
        self,
        group: str | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            with self.scope:
                await serve(
                    self.socket,
                    self.handle,
                    self.telemetry,
                    self.logs,
                    group,
                    task_status=task_status,
                )
        finally:
            self.ended.set()


@asynccontextmanager
async def serving(
    socket: Path, telemetry: Telemetry, group: str | None = None
) -> AsyncIterator[Daemon]:
    """A daemon that listens at `socket` until the block ends."""
    daemon = Daemon(socket, telemetry)
    async with anyio.create_task_group() as tasks:
        await tasks.start(daemon.run, group)
        try:
            yield daemon
        finally:
            daemon.scope.cancel()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a client process gets: no COORDINATOR_* of whoever runs the tests."""
    ours = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    coverage = {key: value for key, value in os.environ.items() if key.startswith("COVERAGE")}
    return {**ours, **coverage, "PYTHONPATH": str(ROOT), **(extra or {})}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def ctl(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """Run coordinatorctl to its end, in a forked process."""
    request = {"arguments": arguments, "environ": environment(env)}
    received = b""
    with anyio.fail_after(60):
        async with await anyio.connect_unix(_fork_server()) as stream:
            await stream.send(json.dumps(request).encode() + b"\n")
            with suppress(anyio.EndOfStream):
                while True:
                    received += await stream.receive()
    return Result(**json.loads(received))


async def ctl_process(
    *arguments: str, env: Mapping[str, str] | None = None, stdout: int = PIPE
) -> Result:
    """Run `python -m coordinator.cli` to its end."""
    command = [sys.executable, "-m", "coordinator.cli", *arguments]
    with anyio.fail_after(60):
        done = await anyio.run_process(command, check=False, env=environment(env), stdout=stdout)
    return Result(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


@cache
def _fork_server() -> str:
    """The socket of the fork server, which lives as long as this process."""
    place = tempfile.TemporaryDirectory(prefix="ctl-")
    path = f"{place.name}/fork.sock"
    server = Popen(
        [sys.executable, "-m", "tests.control.forkserver", path],
        stdin=PIPE,
        stdout=PIPE,
        env=environment(),
        cwd=ROOT,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    def end() -> None:
        server.communicate(timeout=30)  # closes its standard input
        place.cleanup()

    atexit.register(end)
    return path
