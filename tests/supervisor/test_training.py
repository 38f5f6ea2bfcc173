"""A training and its shim's connection: a real unix socket, the shim's side spoken by the test."""

import signal
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.core.model import CommandKind
from coordinator.core.protocol import Go, KillTree, SendSignal, ShimTold
from coordinator.core.wire import TrainCommand
from coordinator.leases import Lease
from coordinator.supervisor.agent import Agent
from coordinator.supervisor.shims import ShimLink, Shims
from coordinator.supervisor.training import Order, Training

pytestmark = pytest.mark.anyio
HELLO = b'{"say":"hello","agent":"t","run_id":"r","pid":1,"child_pid":null,"argv":[],"cwd":"/"}\n'
_told = msgspec.json.Decoder(ShimTold)


class ShimSide:
    """What a shim would see and say."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._lines = BufferedByteReceiveStream(stream)

    async def hear(self) -> ShimTold:
        with anyio.fail_after(20):
            return _told.decode(await self._lines.receive_until(b"\n", 65536))

    async def close(self) -> None:
        await self._stream.aclose()

    async def say(self, line: bytes) -> None:
        await self._stream.send(line + b"\n")


async def connected(shims: Shims) -> tuple[ShimLink, ShimSide]:
    """A link as the daemon has it, and its other end."""
    links: list[ShimLink] = []

    async def expect() -> None:
        links.append(await shims.expect("t", "r"))

    async with anyio.create_task_group() as group:
        group.start_soon(expect)
        await anyio.wait_all_tasks_blocked()
        stream = await anyio.connect_unix(shims.path)
        await stream.send(HELLO)
    return links[0], ShimSide(stream)


def training(tmp_path: Path) -> Training:
    async def closing(_token: str) -> None:
        """Nobody waits for the lease here."""

    command = TrainCommand(CommandKind.RUN, "r", "train.py", {}, {})
    lease = Lease("r", CommandKind.RUN, "token", 1, 0)
    return Training(0, command, lease, Agent(1, "t", tmp_path / "out"), claim="no-such-claim",
                    began="", closing=closing)  # fmt: skip


async def test_a_notice_before_the_word_to_start_is_sent_after_it(tmp_path: Path) -> None:
    shims = Shims(tmp_path / "s.sock")
    subject = training(tmp_path)
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        link, shim = await connected(shims)
        subject.preempt(signal.SIGTERM, 60.0)
        group.start_soon(subject.run, link, Order({}, 1.0, tmp_path / "exit"))

        assert isinstance(await shim.hear(), Go)
        assert await shim.hear() == SendSignal(signal.SIGTERM, once=True)
        await shim.say(b'{"say":"started","pid":4194304}')
        await shim.say(b'{"say":"exited","status":36608}')
        await shim.say(b'{"say":"tree_gone","killed":0}')
        with anyio.fail_after(20):
            while not subject.exited:
                await subject.changed.wait()
        await shim.close()
        group.cancel_scope.cancel()

    assert subject.ending(None).exit_code == 143
    assert subject.ending(None).preempted


async def test_many_senders_at_once_keep_their_order(tmp_path: Path) -> None:
    shims = Shims(tmp_path / "s.sock")
    numbers = list(range(1, 31))
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        link, shim = await connected(shims)
        async with anyio.create_task_group() as senders:
            for number in numbers:
                senders.start_soon(link.send, SendSignal(number, once=False))
            senders.start_soon(link.send, KillTree())

        heard = [await shim.hear() for _ in [*numbers, "kill"]]
        await shim.close()
        group.cancel_scope.cancel()

    assert heard == [*(SendSignal(number, once=False) for number in numbers), KillTree()]
