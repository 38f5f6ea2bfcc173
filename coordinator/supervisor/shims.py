"""Talks to the run shims over a unix socket in the state directory.

Owns the socket and the framing (`core.protocol`). A shim that nobody expects is refused: it stands
for a command that was given up.
"""

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
import structlog
from anyio.abc import SocketStream, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.core.shim_protocol import Hello, Refuse, ShimSays, ShimTold

log = structlog.get_logger()

LONGEST_LINE = 4 * 1024 * 1024
"""A hello carries the whole command line, which Linux limits to 2 MiB (execve(2))."""
HELLO_SECONDS = 10.0
SEND_SECONDS = 10.0
REFUSED_EXIT_CODE = 75
LOST = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError,
        anyio.ClosedResourceError, anyio.DelimiterNotFound, msgspec.ValidationError,
        msgspec.DecodeError)  # fmt: skip

_decode = msgspec.json.Decoder(ShimSays)
_encode = msgspec.json.Encoder()


class ShimLink:
    """A connection to one shim."""

    def __init__(
        self, stream: SocketStream, hello: Hello, lines: BufferedByteReceiveStream
    ) -> None:
        self._stream = stream
        self._lines = lines
        self.hello = hello
        self.closed = anyio.Event()
        self._sending = anyio.Lock()

    async def send(self, message: ShimTold) -> bool:
        """Tell the shim something; False when it is gone."""
        try:
            with anyio.fail_after(SEND_SECONDS):
                # A stream takes one sender at a time; those who come later keep their order.
                async with self._sending:
                    await self._stream.send(_encode.encode(message) + b"\n")
        except (*LOST, TimeoutError):
            return False
        return True

    async def messages(self) -> AsyncIterator[ShimSays]:
        """What the shim says, until it is gone."""
        with suppress(*LOST):
            while True:
                line = await self._lines.receive_until(b"\n", LONGEST_LINE)
                yield _decode.decode(line)


class Shims:
    """Hands each new connection to the slot that expects it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._expected: dict[str, tuple[str, list[ShimLink], anyio.Event]] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        await anyio.Path(self.path).unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            listener = await anyio.create_unix_listener(self.path)
        finally:
            os.umask(mask)
        async with listener:
            task_status.started()
            await listener.serve(self._handle)

    def announce(self, token: str, run_id: str) -> None:
        """`expect` will be called for this shim: from now on it waits, and is not refused.

        A living training whose shim is refused is killed, so the trainings that are to be adopted
        are announced before anybody can connect.
        """
        self._expected.setdefault(token, (run_id, [], anyio.Event()))

    async def expect(self, token: str, run_id: str) -> ShimLink:
        """Wait for the shim of agent `token` that stands for `run_id`."""
        self.announce(token, run_id)
        _, box, came = self._expected[token]
        try:
            await came.wait()
        except BaseException:
            for link in box:  # it came just as we gave up; without us it must not start
                link.closed.set()
            raise
        finally:
            del self._expected[token]
        return box[0]

    async def _handle(self, stream: SocketStream) -> None:
        async with stream:
            lines = BufferedByteReceiveStream(stream)
            hello: ShimSays | None = None
            with anyio.move_on_after(HELLO_SECONDS), suppress(*LOST):
                hello = _decode.decode(await lines.receive_until(b"\n", LONGEST_LINE))
            if not isinstance(hello, Hello):
                return
            link = ShimLink(stream, hello, lines)
            run_id, box, came = self._expected.get(hello.agent, ("", [], None))
            if came is None or run_id != hello.run_id or box:
                log.warning("shim_refused", run_id=hello.run_id, pid=hello.pid)
                await link.send(Refuse(REFUSED_EXIT_CODE, "this run was given to somebody else"))
                return
            box.append(link)
            came.set()
            await link.closed.wait()
