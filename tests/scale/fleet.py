"""The processes that carry the nodes, and the play's line to each.

Owns these processes: they end when the play hangs up.
"""

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, TypeVar

import anyio
import anyio.abc
import msgspec
from anyio.abc import ByteStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.scale.judge import Interval
from tests.scale.worker import LINE, Order, Orders, State, Taken
from tests.support.node import REPOSITORY

T = TypeVar("T")
START_SECONDS = 60.0
ANSWER_SECONDS = 120.0


class Line:
    """One process, as the play sees it."""

    def __init__(self, process: Process, stream: ByteStream) -> None:
        self.process = process
        self._stream = stream
        self._lines = BufferedByteReceiveStream(stream)

    async def ask(self, order: Order, kind: type[T]) -> T:
        """Give an order and wait for the answer."""
        await self._stream.send(msgspec.json.encode(order) + b"\n")
        with anyio.fail_after(ANSWER_SECONDS):
            return msgspec.json.decode(await self._lines.receive_until(b"\n", LINE), type=kind)


class Fleet:
    """All of them."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    async def tell(self, do: str, **more: Any) -> int:
        """The same order to all; the sum of their answers."""
        return sum(await self._all(Order(do=do, **more), int))

    async def state(self) -> State:
        """All together."""
        found = await self._all(Order(do="state"), State)
        return State(
            held=sum(s.held for s in found),
            waiting=sum(s.waiting for s in found),
            healthy=sum(s.healthy for s in found),
            nodes=sum(s.nodes for s in found),
            oldest=max(s.oldest for s in found),
        )

    async def take(self) -> Taken:
        """All together."""
        found = await self._all(Order(do="take"), Taken)
        return Taken(
            lags=[lag for taken in found for lag in taken.lags],
            cpu_seconds=sum(taken.cpu_seconds for taken in found),
            acquires=[seconds for taken in found for seconds in taken.acquires],
            drops=dict(sum((Counter(taken.drops) for taken in found), Counter[str]())),
            events=dict(sum((Counter(taken.events) for taken in found), Counter[str]())),
            rescued=sum(taken.rescued for taken in found),
            questions=[seconds for taken in found for seconds in taken.questions],
        )

    async def ask_for_all(self) -> None:
        """One node asks for all nodes and all leases, as an operator does."""
        await self._lines[0].ask(Order(do="ask"), int)

    async def intervals(self) -> list[Interval]:
        """What all nodes have held so far."""
        found = await self._all(Order(do="intervals"), list[Interval])
        return [interval for part in found for interval in part]

    async def _all(self, order: Order, kind: type[T]) -> list[T]:
        answers: list[T] = []

        async def ask(line: Line) -> None:
            answers.append(await line.ask(order, kind))

        async with anyio.create_task_group() as tasks:
            for line in self._lines:
                tasks.start_soon(ask, line)
        return answers


@asynccontextmanager
async def fleet(directory: Path, orders: list[Orders]) -> AsyncIterator[Fleet]:
    """One process for each of `orders`; they end with the context."""
    lines: list[Line] = []
    try:
        for number, each in enumerate(orders):
            lines.append(await _start(directory / f"w{number}", each))
        yield Fleet(lines)
    finally:
        with anyio.CancelScope(shield=True):
            for line in lines:
                await line._stream.aclose()
                with anyio.move_on_after(10):
                    await line.process.wait()
                if line.process.returncode is None:
                    line.process.kill()
                await line.process.aclose()


async def _start(socket: Path, orders: Orders) -> Line:
    listener = await anyio.create_unix_listener(socket)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = await anyio.open_process(
        [sys.executable, "-m", "tests.scale.worker", str(socket)],
        stdin=PIPE, stdout=None, stderr=None, cwd=REPOSITORY, env=environ,
    )  # fmt: skip
    assert process.stdin is not None
    await process.stdin.send(msgspec.json.encode(orders) + b"\n")
    async with listener:
        with anyio.fail_after(START_SECONDS):
            stream = await listener.accept()
    return Line(process, stream)
