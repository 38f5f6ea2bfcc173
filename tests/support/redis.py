"""A private real Redis (or Valkey) for tests, and a proxy in front of it that does damage.

Owns the server process that it starts, ended by its pid. It never touches another Redis.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import DEVNULL

import anyio
from anyio.abc import Process, SocketStream
from redis.asyncio import Redis, RedisCluster

from coordinator.leases.connection import open_client
from coordinator.redis_server import find_server
from tests.support.emulator import wait_until


def redis_program() -> str:
    """redis-server if installed (the oldest that we support), else what the daemon would take."""
    return shutil.which("redis-server") or str(find_server())


@contextmanager
def shared_redis(directory: Path) -> Iterator[str]:
    """The address of a private server for the nodes of one play; for code without a loop."""
    path = directory / "r.sock"
    server = subprocess.Popen(
        [redis_program(), "--port", "0", "--unixsocket", str(path), "--save", "",
         "--dir", str(directory)],
        stdin=DEVNULL, stdout=DEVNULL,
    )  # fmt: skip
    try:
        wait_until("redis listens", path.exists)
        yield f"unix://{path}"
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server on a unix socket in `directory`; it can be killed, frozen and started again."""

    def __init__(
        self, directory: Path, options: Sequence[str], program: str, sentinel: Path | None = None
    ) -> None:
        """`sentinel` is the file of a Sentinel, which must be able to write it."""
        self._first = (
            ["--port", "0", "--save", ""] if sentinel is None else [str(sentinel), "--sentinel"]
        )
        self.socket = directory / "r.sock"
        self.url = f"unix://{self.socket}"
        self._directory = directory
        self._options = options
        self._program = program
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """The pid of the running server."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Until it answers."""
        self.socket.unlink(missing_ok=True)
        command = [self._program, *self._first, "--unixsocket", str(self.socket)]
        command += ["--dir", str(self._directory), *self._options]
        self._process = await anyio.open_process(command, stdin=DEVNULL, stdout=DEVNULL)
        with anyio.fail_after(20):
            while not await self._answers():
                assert self._process.returncode is None, "the server ended"
                await anyio.sleep(0.01)

    async def _answers(self) -> bool:
        try:
            async with await anyio.connect_unix(self.socket) as stream:
                await stream.send(b"PING\r\n")
                return not (await stream.receive(64)).startswith(b"-LOADING")
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return False

    async def kill(self) -> None:
        """SIGKILL; data that were not persisted are lost."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            await process.aclose()

    def freeze(self) -> None:
        """SIGSTOP: requests queue up and are executed after `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    @asynccontextmanager
    async def client(self, url: str | None = None) -> AsyncIterator[Redis]:
        """A client for the test itself."""
        client = open_client(url or self.url, timeout_seconds=10, connections=4)
        assert not isinstance(client, RedisCluster)
        try:
            yield client
        finally:
            await client.aclose()


@asynccontextmanager
async def redis_server(
    directory: Path,
    *options: str,
    program: str | None = None,
    start: bool = True,
    sentinel: Path | None = None,
) -> AsyncIterator[RedisServer]:
    """A server with `options` added to its command line."""
    server = RedisServer(directory, options, program or redis_program(), sentinel)
    try:
        if start:
            await server.start()
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await server.kill()


class FaultProxy:
    """A TCP proxy on loopback in front of a unix socket. Faults apply to all connections.

    `black_hole`: bytes vanish in both directions. `delay_seconds`: replies come late.
    `cut_replies` / `drop_replies`: that many of the next replies to requests that contain `match`
    end the connection / vanish, after the server has executed the request.
    """

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._streams: set[SocketStream] = set()
        self.port = 0
        self.black_hole = False
        self.delay_seconds = 0.0
        self.match = b""
        self.cut_replies = 0
        self.drop_replies = 0
        self.hits = 0
        """Replies that were cut or dropped."""
        self.on_request: Callable[[bytes], None] | None = None
        """Sees each request before it goes on."""

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"redis://127.0.0.1:{self.port}"

    async def reset_all(self) -> None:
        """End every connection."""
        for stream in list(self._streams):
            await stream.aclose()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["FaultProxy"]:
        """Listen on a free port while the context lasts."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self.port)
        self.port = listener.listeners[0].extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._connection)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    async def _connection(self, client: SocketStream) -> None:
        harm = _Harm()
        async with client:
            try:
                # Not anyio's unix stream: cancelled while data arrive, it upsets the loop.
                server, answers = await _open_upstream(self._upstream)
            except OSError:
                return
            self._streams.add(client)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._requests, client, server, harm, tasks.cancel_scope)
                    tasks.start_soon(self._replies, answers, client, harm, tasks.cancel_scope)
            finally:
                self._streams.discard(client)
                server.close()

    async def _requests(
        self, client: SocketStream, server: StreamWriter, harm: "_Harm", scope: anyio.CancelScope
    ) -> None:
        try:
            async for data in client:
                if self.on_request is not None:
                    self.on_request(data)
                harm.due = self.match != b"" and self.match in data
                if not self.black_hole:
                    server.write(data)
                    await server.drain()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass
        scope.cancel()

    async def _replies(
        self, server: StreamReader, client: SocketStream, harm: "_Harm", scope: anyio.CancelScope
    ) -> None:
        try:
            while data := await server.read(65536):
                if await self._passes(harm):
                    await client.send(data)
                elif harm.cut:
                    break
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass
        scope.cancel()

    async def _passes(self, harm: "_Harm") -> bool:
        if harm.due and self.cut_replies:
            self.cut_replies -= 1
            self.hits += 1
            harm.cut = True
            return False
        if harm.due and self.drop_replies:
            self.drop_replies -= 1
            self.hits += 1
            return False
        if self.delay_seconds:
            await anyio.sleep(self.delay_seconds)
        return not self.black_hole


async def _open_upstream(path: Path) -> tuple[StreamWriter, StreamReader]:
    reader, writer = await asyncio.open_unix_connection(path)
    return writer, reader


class _Harm:
    """What hangs over one connection."""

    def __init__(self) -> None:
        self.due = False
        self.cut = False
