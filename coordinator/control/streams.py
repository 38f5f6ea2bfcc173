"""Streaming answers: events and training output, one JSON object per line.

Owns the followers. A follower that reads slowly or disconnects only affects itself, and none may
delay the end of the daemon.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
import structlog
from aiohttp import web

from coordinator.core.protocol import Answer, Failed, Invalid, LogLine
from coordinator.errors import UserError
from coordinator.telemetry import Telemetry

log = structlog.get_logger()

KEEPALIVE_SECONDS = 10.0
"""Interval of blank lines, so that a client notices a dead daemon and we notice a dead client."""
MAX_FOLLOWERS = 64
_CLOSE_SECONDS = 2.0


Logs = Callable[[str | None, int, bool], AsyncIterator[LogLine]]
"""`logs(target, n, follow)`: the last `n` lines of `target` (slot number, run ID; None: all),
then with `follow` new ones. Raises UserError if there is no such target."""


class Followers:
    """All streams in progress, so that they can be ended together."""

    def __init__(self, telemetry: Telemetry, headers: dict[str, str]) -> None:
        self._telemetry = telemetry
        self._headers = headers
        self._scopes: set[anyio.CancelScope] = set()
        self._ended = False

    def end(self) -> None:
        """End every stream now and accept no new ones."""
        self._ended = True
        for scope in tuple(self._scopes):
            scope.cancel()

    @property
    def is_full(self) -> bool:
        """True if no more followers are accepted."""
        return self._ended or len(self._scopes) >= MAX_FOLLOWERS

    async def send(self, request: web.Request, lines: AsyncIterator[Any]) -> web.StreamResponse:
        """Answer `request` with `lines` until they end, the client is gone or `end()` is called."""
        response = web.StreamResponse(
            headers={**self._headers, "Content-Type": "application/x-ndjson"}
        )
        with self._registered() as scope, scope:
            await response.prepare(request)
            await _Stream(response, self._telemetry).pump(lines)
        return response

    @contextmanager
    def _registered(self) -> Iterator[anyio.CancelScope]:
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            yield scope
        finally:
            self._scopes.discard(scope)


class _Stream:
    """One streaming answer. `turn` prevents a blank line inside another line."""

    def __init__(self, response: web.StreamResponse, telemetry: Telemetry) -> None:
        self._response = response
        self._telemetry = telemetry
        self._turn = anyio.Lock()

    async def pump(self, lines: AsyncIterator[Any]) -> None:
        """Write `lines`, and blank lines while there are none; return when the client is gone."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_alive, group.cancel_scope)
            await self._copy(lines)
            group.cancel_scope.cancel()

    async def _copy(self, lines: AsyncIterator[Any]) -> None:
        try:
            async for line in lines:
                if not await self._write(line):
                    return
        except UserError as error:
            await self._write(Invalid(str(error)))
        except Exception as error:
            log.exception("control_stream_failed")
            await self._write(failed(error, self._telemetry))
        finally:
            await _close(lines)

    async def _keep_alive(self, scope: anyio.CancelScope) -> None:
        while True:
            await anyio.sleep(KEEPALIVE_SECONDS)
            if not await self._write(None):
                scope.cancel()

    async def _write(self, value: Any) -> bool:
        """Send one line; False if the client has disconnected."""
        data = b"\n" if value is None else msgspec.json.encode(value) + b"\n"
        try:
            async with self._turn:
                await self._response.write(data)
        except ConnectionError:
            return False
        return True


async def _close(lines: AsyncIterator[Any]) -> None:
    """Close a generator that was left early, so that its clean-up runs now."""
    if isinstance(lines, AsyncGenerator):
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await lines.aclose()


def failed(error: Exception, telemetry: Telemetry) -> Answer:
    """The answer to the client after an internal error: one line, no traceback, no secret."""
    text = " ".join(telemetry.redact(str(error)).split()) or "no message"
    return Failed(f"{type(error).__name__}: {text}; see the daemon's log for the traceback")
