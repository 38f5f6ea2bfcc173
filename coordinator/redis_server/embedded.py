"""The embedded server's life: start, watch, restart, orderly stop.

Owns its process. It must never open a TCP port, never outlive the daemon (`leash.py`), and never
run together with another server on the same directory (the lock is inherited by the server).
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

import anyio
import anyio.to_thread
import structlog
from anyio.abc import Process

from coordinator.errors import PeerError, UserError
from coordinator.redis_server import leash
from coordinator.redis_server.binary import find_server
from coordinator.redis_server.layout import (
    Layout,
    clear_socket,
    log_tail,
    open_log,
    prepare,
    try_lock,
)

log = structlog.get_logger()

LOCK_SECONDS: Final = 5.0
"""How long a start waits for the server of a killed daemon to exit."""
READY_SECONDS: Final = 60.0
"""How long a server may take to load its data."""
STOP_SECONDS: Final = 5.0
"""How long an orderly stop may take before SIGKILL."""
_LOOK_SECONDS: Final = 0.02
_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH")
"""Variables passed to the server; the rest of the daemon's environment contains secrets."""
_BACKOFF_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses before restarts of a server that keeps crashing; the last one repeats."""
_STEADY_SECONDS: Final = 60.0
"""After a server has run this long, the next pause is the first one again."""


@asynccontextmanager
async def embedded_redis(state_dir: Path) -> AsyncIterator[str]:
    """Run a private server in `state_dir`/redis and give its URL.

    Raises UserError if there is no server program, if it does not start, if the path is too long,
    or if another daemon uses the same directory.
    """
    program = find_server()
    layout = await anyio.to_thread.run_sync(prepare, state_dir)
    lock = await _lock(layout)
    server = _Server(program, layout, lock)
    try:
        try:
            await server.start()
        except PeerError as error:
            raise UserError(f"--state-dir: the embedded Redis does not start: {error}") from error
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.watch)
            try:
                yield layout.url
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop()
        os.close(lock)


async def _lock(layout: Layout) -> int:
    """The directory's lock. Raises UserError if it cannot be acquired."""
    with anyio.move_on_after(LOCK_SECONDS):
        while True:
            handle = await anyio.to_thread.run_sync(try_lock, layout)
            if handle is not None:
                return handle
            await anyio.sleep(_LOOK_SECONDS)
    raise UserError(
        f"--state-dir: another coordinatord is running its Redis in {layout.directory}; "
        "choose another directory or stop that daemon"
    )


class _Server:
    """One server process after the other, at most one at a time."""

    def __init__(self, program: Path, layout: Layout, lock: int) -> None:
        self._program = program
        self._layout = layout
        self._lock = lock
        self._process: Process | None = None
        self._starts = 0

    async def start(self) -> None:
        """Start and wait for an answer. Raises PeerError if it ends first or does not answer."""
        await anyio.to_thread.run_sync(clear_socket, self._layout)
        output = await anyio.to_thread.run_sync(open_log, self._layout)
        try:
            with anyio.CancelScope(shield=True):
                process = self._process = await self._spawn(output)
        finally:
            os.close(output)
        await self._ready(process)
        self._starts += 1
        log.info(
            "redis_server_started",
            pid=process.pid,
            program=str(self._program),
            restarts=self._starts - 1,
        )

    async def _spawn(self, output: int) -> Process:
        """In a session of its own: a terminal's Ctrl-C must not end it before the daemon does."""
        leash_file = str(Path(leash.__file__))
        command = [sys.executable, "-I", "-S", leash_file, str(os.getpid()), str(self._program)]
        return await anyio.open_process(
            command + self._layout.arguments(),
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self._layout.directory,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,
            pass_fds=(self._lock,),
        )

    async def _ready(self, process: Process) -> None:
        with anyio.move_on_after(READY_SECONDS):
            while process.returncode is None:
                if await _answers(self._layout):
                    return
                await anyio.sleep(_LOOK_SECONDS)
        tail = await anyio.to_thread.run_sync(log_tail, self._layout)
        if process.returncode is None:
            raise PeerError(f"no answer within {READY_SECONDS:g} seconds: {tail}")
        raise PeerError(f"it ended with status {process.returncode}: {tail}")

    async def watch(self) -> None:
        """Restart the server whenever it ends."""
        failures = 0
        while True:
            began = anyio.current_time()
            if self._process is not None:
                status = await self._process.wait()
                tail = await anyio.to_thread.run_sync(log_tail, self._layout)
                log.error("redis_server_crashed", status=status, tail=tail)
            if anyio.current_time() - began > _STEADY_SECONDS:
                failures = 0
            await anyio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])
            failures += 1
            try:
                await self.start()
            except PeerError as error:
                log.error("redis_server_start_failed", problem=str(error))
                await self.stop()

    async def stop(self) -> None:
        """Stop the process, gracefully if possible, within a time limit."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            with anyio.move_on_after(STOP_SECONDS):
                await process.wait()
        killed = process.returncode is None
        if killed:
            process.kill()
            await process.wait()
        await process.aclose()
        log.info("redis_server_stopped", status=process.returncode, killed=killed)


async def _answers(layout: Layout) -> bool:
    """True if the server answers PONG, not that it is loading."""
    try:
        with anyio.fail_after(1.0):
            # Not anyio's unix stream: if cancelled while data arrive, it breaks the loop (4.16).
            reader, writer = await asyncio.open_unix_connection(layout.socket)
            try:
                writer.write(b"PING\r\n")
                return (await reader.read(64)).startswith(b"+PONG")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
