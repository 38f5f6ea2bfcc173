"""The proxy itself: passes everything through, except the three documents that `core.wire` knows.

Owns the loopback port. Adds no credentials, changes no relevant header, and passes documents
that it does not know on unchanged. A request without a known token is refused, because other users
of the machine can reach a loopback port.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import anyio
import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout, web
from anyio.abc import TaskStatus
from yarl import URL

from coordinator.core import wire
from coordinator.gateway.desk import Desk, IdleBeat, Reply
from coordinator.gateway.endpoint import Endpoint

log = structlog.get_logger()

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",
        "content-encoding",
    }
)
"""RFC 9110, 7.6.1, and what aiohttp computes for each side."""
UPSTREAM_SECONDS = 60.0
MAX_BODY = 256 * 1024 * 1024


class Gateway:
    """Serves `http://127.0.0.1:PORT/a/TOKEN/…` for the agents of one daemon."""

    def __init__(
        self,
        endpoint: Endpoint,
        upstream: str,
        session: ClientSession,
        desk: Desk,
        shim: Sequence[str],
    ) -> None:
        self._listener = endpoint.listener
        self._upstream = upstream
        self._session = session
        self._desk = desk
        self._shim = shim

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/a/{token}/{tail:.*}", self._handle)
        # Bodies are passed on unchanged, so aiohttp must not decompress them.
        runner = web.AppRunner(app, handler_cancellation=True, auto_decompress=False,
                               access_log=None, shutdown_timeout=1)  # fmt: skip
        await runner.setup()
        try:
            await web.SockSite(runner, self._listener, backlog=512).start()
            task_status.started()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        token = request.match_info["token"]
        if not self._desk.knows(token):
            return web.json_response({"error": "unknown agent"}, status=HTTPStatus.FORBIDDEN)
        if request.method == "POST" and request.match_info["tail"] == "graphql":
            return await self._graphql(request, token)
        return await self._stream(request)

    async def _graphql(self, request: web.Request, token: str) -> web.StreamResponse:
        body = await request.read()
        query = wire.parse_query(_plain(body, request.headers.get("Content-Encoding", "")))
        if query is None:
            return _respond(await self._send(request, body))
        if wire.is_heartbeat(query):
            return await self._heartbeat(request, token, query, body)
        reply = await self._send(request, body)
        if not self._desk.knows(token):  # it has ended in the meantime
            return _respond(reply)
        if _is_trouble(reply):
            self._desk.troubled(token, reply)
        if wire.is_registration(query):
            reply = self._registration(token, reply)
        elif wire.is_sweep_query(query) and reply.status == HTTPStatus.OK:
            changed = wire.put_in_front(reply.body, self._shim)
            if changed is None:
                log.warning("sweep_document_unknown", size=len(reply.body))
            else:
                reply = Reply(reply.status, changed)
        return _respond(reply)

    def _registration(self, token: str, reply: Reply) -> Reply:
        name = wire.agent_id(reply.body) if reply.status == HTTPStatus.OK else None
        if name is not None:
            self._desk.registered(token, name)
        elif (name := self._desk.turned_away(token, reply)) is not None:
            return Reply(HTTPStatus.OK, wire.registration_answer(name))
        return reply

    async def _heartbeat(
        self, request: web.Request, token: str, query: wire.Query, body: bytes
    ) -> web.StreamResponse:
        name = str(query.variables.get("id"))
        nothing = Reply(HTTPStatus.OK, wire.heartbeat_answer(name, []))

        async def ask() -> Reply:
            guest = self._desk.is_guest(token)
            return nothing if guest else await self._send(request, body)

        if not wire.running_runs(query):
            answer = await self._desk.idle(token, IdleBeat(name, ask))
            return _respond(Reply(HTTPStatus.OK, answer))
        if not await self._desk.due(token):
            return _respond(nothing)
        reply = await ask()
        if not self._desk.knows(token):  # it has ended in the meantime
            return _respond(nothing)
        if _is_trouble(reply):
            self._desk.troubled(token, reply)
        orders = wire.parse_orders(reply.body) if reply.status == HTTPStatus.OK else None
        withheld = orders is not None and not self._desk.ordered(token, orders)
        return _respond(nothing if withheld else reply)

    async def _send(self, request: web.Request, body: bytes) -> Reply:
        """Send a whole request upstream and read the whole answer."""
        try:
            async with self._session.request(
                request.method,
                self._target(request),
                data=body,
                headers=self._headers(request),
                allow_redirects=False,
                timeout=ClientTimeout(total=UPSTREAM_SECONDS),
            ) as response:
                wait = _retry_after(response.headers.get("Retry-After", ""))
                return Reply(response.status, await response.read(), wait)
        except (ClientError, TimeoutError, OSError) as error:
            return _unreachable(error)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Pass on a request that we do not read, without keeping it in memory."""
        answer: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                self._target(request),
                data=request.content.iter_any() if request.body_exists else None,
                headers=self._headers(request),
                allow_redirects=False,
                timeout=ClientTimeout(total=None, sock_connect=30, sock_read=UPSTREAM_SECONDS),
            ) as response:
                answer = web.StreamResponse(status=response.status)
                answer.headers.update(_end_to_end(response.headers))
                await answer.prepare(request)
                async for chunk in response.content.iter_any():
                    await answer.write(chunk)
                await answer.write_eof()
                return answer
        except (ClientError, TimeoutError, OSError) as error:
            if answer is None:
                return _respond(_unreachable(error))
            if (
                request.transport is not None
            ):  # only a broken connection can signal an incomplete body
                request.transport.abort()
            return answer

    def _target(self, request: web.Request) -> URL:
        """The upstream address, with the agent's escapes unchanged."""
        _, _, _, tail = request.rel_url.raw_path_qs.split("/", 3)
        return URL(f"{self._upstream}/{tail}", encoded=True)

    def _headers(self, request: web.Request) -> dict[str, str]:
        return _end_to_end(request.headers) | _encoding(request.headers)


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


def _encoding(headers: Mapping[str, str]) -> dict[str, str]:
    """The body is passed on unchanged, so its encoding must be too."""
    value = headers.get("Content-Encoding")
    return {"Content-Encoding": value} if value else {}


def _plain(body: bytes, encoding: str) -> bytes:
    """The decompressed body, only for reading; a body that we cannot read stays as it is."""
    try:
        return gzip.decompress(body) if encoding.lower() == "gzip" else body
    except (OSError, EOFError, zlib.error):
        return body


def _is_trouble(reply: Reply) -> bool:
    """The server is overloaded, failing, gone, or rejects the key."""
    refused = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
    return reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR or reply.status in refused


def _retry_after(value: str) -> float | None:
    """Seconds or a date (RFC 9110, 10.2.3); None if it is neither."""
    if value.isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (moment - datetime.now(moment.tzinfo or UTC)).total_seconds())


def _respond(reply: Reply) -> web.Response:
    headers: dict[str, str] = {}
    if reply.retry_after_seconds is not None:
        headers = {"Retry-After": str(round(reply.retry_after_seconds))}
    return web.Response(
        status=reply.status, body=reply.body, content_type="application/json", headers=headers
    )


def _unreachable(error: Exception) -> Reply:
    words = str(error) or type(error).__name__
    text = json.dumps({"error": f"W&B cannot be reached: {words}"})
    return Reply(HTTPStatus.BAD_GATEWAY, text.encode())
