"""The HTTP server of the control socket.

Owns the path of a request: peer, protocol, decoding, handler, one answer. Every request must get an
answer, and no client may delay the end of the daemon.
"""

import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, assert_never

import anyio
import anyio.abc
import msgspec
import structlog
from aiohttp import web

from coordinator import __version__
from coordinator.control.peers import Peer, may_command, peer_of
from coordinator.control.sockets import Listener, group_id, listen
from coordinator.control.streams import Followers, Logs, failed
from coordinator.core.protocol import (
    PROTOCOL_VERSION,
    Answer,
    Done,
    Failed,
    GetLease,
    GetLeases,
    GetNodes,
    GetRuns,
    GetStatus,
    Invalid,
    LogLine,
    Refused,
    RequestUnion,
)
from coordinator.telemetry import Event, Telemetry

log = structlog.get_logger()

Handler = Callable[[RequestUnion], Awaitable[Answer]]

PROTOCOL_HEADER = "X-Coordinator-Protocol"
VERSION_HEADER = "X-Coordinator-Version"
MAX_BODY_BYTES = 65_536
MAX_PAST = 100_000
"""Maximum number of past events or lines in one answer."""
_LOOKS = GetStatus | GetRuns | GetLeases | GetLease | GetNodes
"""Requests that change nothing; they are not logged as events."""
_BODY_SECONDS = 10.0
_HANDLERS_SECONDS = 3.0
"""How long commands in progress may take to answer when the server ends."""
_CLEANUP_SECONDS = 10.0
_HEADERS = {PROTOCOL_HEADER: str(PROTOCOL_VERSION), VERSION_HEADER: __version__}


async def serve(
    socket_path: Path,
    handler: Handler,
    telemetry: Telemetry,
    logs: Logs,
    group: str | None = None,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the control socket until cancelled; `started` when clients can connect.

    Raises ControlSocketError if the socket cannot be created. Its file is removed afterwards.
    """
    gid, listener = await anyio.to_thread.run_sync(_prepare, socket_path, group)
    server = _Server(handler, telemetry, logs, gid)
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=_HANDLERS_SECONDS,
    )
    try:
        await runner.setup()
        await web.SockSite(runner, listener.sock).start()
        log.info(
            "control_socket_opened",
            path=str(socket_path),
            group=group or None,
            replaced_stale=listener.replaced_stale,
        )
        task_status.started()
        await anyio.sleep_forever()
    finally:
        server.followers.end()
        with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
            await runner.cleanup()
            await anyio.to_thread.run_sync(listener.close)


def _prepare(path: Path, group: str | None) -> tuple[int | None, Listener]:
    gid = group_id(path, group)
    return gid, listen(path, gid)


class _Server:
    """The routes and their shared state."""

    def __init__(self, handler: Handler, telemetry: Telemetry, logs: Logs, gid: int | None) -> None:
        self._handler = handler
        self._telemetry = telemetry
        self._logs = logs
        self._gid = gid
        self._decoder = msgspec.json.Decoder(RequestUnion)
        self.followers = Followers(telemetry, _HEADERS)

    def application(self) -> web.Application:
        """The three routes, behind their shared checks."""
        application = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        application.router.add_post("/v1/command", self._command)
        application.router.add_get("/v1/events", self._events)
        application.router.add_get("/v1/logs", self._log_lines)
        return application

    @web.middleware
    async def _guard(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        peer = _peer(request)
        if peer is None or not may_command(peer, self._gid):
            return self._refuse_peer(peer)
        theirs = request.headers.get(PROTOCOL_HEADER)
        if theirs not in {None, _HEADERS[PROTOCOL_HEADER]}:
            return _reply(Failed(f"the daemon speaks protocol {PROTOCOL_VERSION}, not {theirs}"))
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _reply(Invalid(f"{request.method} {request.path}: {error.reason}"), error.status)
        except Exception as error:
            log.exception("control_request_failed", path=request.path)
            return _reply(failed(error, self._telemetry))

    def _refuse_peer(self, peer: Peer | None) -> web.Response:
        uid = None if peer is None else peer.uid
        log.warning("control_peer_refused", uid=uid, pid=None if peer is None else peer.pid)
        message = (
            f"user {uid} is not allowed to control this daemon; run as user {os.geteuid()} or "
            "root, or join the group set in [control] group"
        )
        return _reply(Refused(message), HTTPStatus.FORBIDDEN)

    async def _command(self, request: web.Request) -> web.Response:
        try:
            with anyio.fail_after(_BODY_SECONDS):
                command = self._decoder.decode(await request.read())
        except TimeoutError:
            return _reply(Invalid("timed out while reading the request"))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _reply(Invalid(f"invalid request: {error}"))
        if not isinstance(command, _LOOKS):
            _log_command(command, _peer(request))
        try:
            answer = await self._handler(command)
        except Exception as error:
            log.exception("control_command_failed", command=_name(command))
            answer = failed(error, self._telemetry)
        return _reply(answer)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        past, follow = _count(request), _flag(request)
        if self.followers.is_full:
            return _reply(Refused("too many clients are following; stop one of them"))
        return await self.followers.send(request, self._event_lines(past, follow))

    async def _event_lines(self, past: int, follow: bool) -> AsyncIterator[Event]:
        if not follow:
            for event in await anyio.to_thread.run_sync(self._telemetry.tail, past):
                yield event
            return
        with await self._telemetry.follow(past) as subscription:
            async for event in subscription:
                yield event

    async def _log_lines(self, request: web.Request) -> web.StreamResponse:
        target = request.query.get("target") or None
        if self.followers.is_full:
            return _reply(Refused("too many clients are following; stop one of them"))
        lines: AsyncIterator[LogLine] = self._logs(target, _count(request), _flag(request))
        return await self.followers.send(request, lines)


def _peer(request: web.Request) -> Peer | None:
    """Who sent `request`; None if the connection is already closed."""
    sock = None if request.transport is None else request.transport.get_extra_info("socket")
    try:
        return None if sock is None else peer_of(sock)
    except (OSError, struct.error):
        return None


def _name(command: RequestUnion) -> str:
    return str(command.__struct_config__.tag)


def _log_command(command: RequestUnion, peer: Peer | None) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(command)
    log.info(
        "control_command_received",
        command=fields.pop("do"),
        arguments=fields,
        uid=None if peer is None else peer.uid,
        pid=None if peer is None else peer.pid,
    )


def _count(request: web.Request) -> int:
    text = request.query.get("n", "20")
    if not (text.isascii() and text.isdecimal()) or int(text) > MAX_PAST:
        raise web.HTTPBadRequest(reason=f"n must be a number from 0 to {MAX_PAST}")
    return int(text)


def _flag(request: web.Request) -> bool:
    text = request.query.get("follow", "0")
    if text not in {"0", "1"}:
        raise web.HTTPBadRequest(reason="follow must be 0 or 1")
    return text == "1"


def _reply(answer: Answer, status: int | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer) + b"\n",
        status=status or _status(answer),
        headers=_HEADERS,
        content_type="application/json",
    )


def _status(answer: Answer) -> HTTPStatus:
    match answer:
        case Done():
            return HTTPStatus.OK
        case Invalid():
            return HTTPStatus.BAD_REQUEST
        case Refused():
            return HTTPStatus.CONFLICT
        case Failed():
            return HTTPStatus.INTERNAL_SERVER_ERROR
        case _:
            assert_never(answer)
