"""The HTTP shell around the backend: routes, credentials, faults, the clock.

Owns all input and output, and nothing that decides what a sweep or a run does. It only ever
listens on the address it is given. No request is ever answered from here with knowledge that
`state` lacks.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from aiohttp import web

from coordinator.emulator import graphql, lifecycle, mutations
from coordinator.emulator.document import DocumentError
from coordinator.emulator.records import Now, RunKey
from coordinator.emulator.state import BackendError
from coordinator.emulator.typed import Context

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from coordinator.emulator.faults import Fault, Faults
    from coordinator.emulator.state import Backend

_WELL_FORMED_KEY: Final = re.compile(r"(?:[\w-]+-)?\w{40,}")
LARGEST_BODY: Final = 256 * 2**20
"""Bytes; the SDK sends up to 10 MB of history in one post."""

_KEPT_FILE: Final = 2**20
"""Bytes of an uploaded file that are kept; wandb's own small files fit."""


def now() -> Now:
    """The present. The only clock of the emulator."""
    return Now(time.monotonic(), time.time())  # noqa: TID251


class Server:
    """Answers wandb's requests out of a backend, with faults on the way."""

    def __init__(self, backend: Backend, faults: Faults, api_keys: frozenset[str]) -> None:
        """`api_keys` restricts who may come in; empty lets any well-formed key in."""
        self.backend = backend
        self.faults = faults
        self._api_keys = api_keys
        self._transports: dict[str, asyncio.BaseTransport] = {}

    def add_routes(self, app: web.Application) -> None:
        """Add the routes that wandb uses, and a last one that records what is missing."""
        app.router.add_post("/graphql", self.operation)
        app.router.add_post("/files/{entity}/{project}/{run}/file_stream", self.file_stream)
        app.router.add_put("/_storage/{entity}/{project}/{run}/{name:.+}", self.upload)
        app.router.add_get("/_storage/{entity}/{project}/{run}/{name:.+}", self.download)
        app.router.add_post("/sdk/otel/{rest:.*}", self.telemetry)
        app.router.add_route("*", "/{rest:.*}", self.unknown)

    async def tick(self) -> None:
        """Let time pass for silent runs and unused claims."""
        for peer, transport in list(self._transports.items()):
            if transport.is_closing():
                del self._transports[peer]
        self.backend.expire(self._transports.keys(), now())

    # --- what wandb asks

    async def operation(self, request: web.Request) -> web.StreamResponse:
        """One GraphQL operation."""
        body = await request.json()
        try:
            asked = graphql.read_request(body)
        except DocumentError as error:
            self.backend.history.record(now(), "unknown_operation", operation=str(error))
            return _errors(400, str(error))
        name = asked.operation.name or "anonymous"
        self.backend.history.count_operation(now(), name, _client(request))
        if not self._is_allowed(request):
            return self._refuse(name)
        idle = not mutations.held_runs(asked.variables) if name == "Heartbeat" else None

        async def answer(bites: list[Fault]) -> web.StreamResponse:
            return self._execute(request, asked, bites)

        return await self._with_faults(request, name, idle, answer)

    def _execute(
        self, request: web.Request, asked: graphql.Request, bites: list[Fault]
    ) -> web.StreamResponse:
        forced = [bite for bite in bites if bite.kind in {"empty", "command"}]
        if forced:
            return self._forced_answer(asked, forced)
        address = f"{request.scheme}://{request.host}"
        context = Context(self.backend, now(), address, self._remember(request))
        try:
            answer = graphql.execute(asked, context)
        except BackendError as error:
            return _errors(error.status, str(error))
        for unknown in answer.unknown:
            self.backend.history.record(
                now(), "unknown_operation", operation=asked.operation.name, field=unknown
            )
        return web.json_response(answer.body)

    def _forced_answer(self, asked: graphql.Request, bites: list[Fault]) -> web.StreamResponse:
        """A heartbeat's answer that the backend was never asked for."""
        commands = [bite.command for bite in bites if bite.kind == "command"]
        agent = {"id": asked.variables.get("id")}
        heartbeat = {"agent": agent, "commands": json.dumps(commands)}
        return web.json_response({"data": {"agentHeartbeat": heartbeat}})

    async def file_stream(self, request: web.Request) -> web.StreamResponse:
        """History, summary, output and the end of a run."""
        self.backend.history.count_operation(now(), "file_stream", _client(request))
        if not self._is_allowed(request):
            return self._refuse("file_stream")
        body = await request.read()

        async def answer(_: list[Fault]) -> web.StreamResponse:
            run = self.backend.runs.get(_run_key(request))
            if run is None:
                return _errors(404, f"run {request.match_info['run']} not found")
            run.peers.add(self._remember(request))
            self.backend.book.post(
                run, msgspec.json.decode(body or b"{}", type=lifecycle.Post), now()
            )
            return web.json_response(
                {"exitcode": None, "limits": {}, "stopped": run.stop_requested}
            )

        return await self._with_faults(request, "file_stream", None, answer)

    async def upload(self, request: web.Request) -> web.StreamResponse:
        """A file of a run; the real server's upload addresses need no credentials either."""
        self.backend.history.count_operation(now(), "upload", _client(request))
        body = await request.read()

        async def answer(_: list[Fault]) -> web.StreamResponse:
            run = self.backend.runs.get(_run_key(request))
            if run is not None:
                run.files[request.match_info["name"]] = body[:_KEPT_FILE]
            return web.Response()

        return await self._with_faults(request, "upload", None, answer)

    async def download(self, request: web.Request) -> web.StreamResponse:
        """A file of a run, as far as it was kept."""
        run = self.backend.runs.get(_run_key(request))
        content = run.files.get(request.match_info["name"]) if run is not None else None
        return web.Response(status=404) if content is None else web.Response(body=content)

    async def telemetry(self, request: web.Request) -> web.StreamResponse:
        """The SDK's own metrics: taken and thrown away."""
        self.backend.history.count_operation(now(), "otel", _client(request))
        await request.read()

        async def answer(_: list[Fault]) -> web.StreamResponse:
            return web.Response(content_type="application/x-protobuf")

        return await self._with_faults(request, "otel", None, answer)

    async def unknown(self, request: web.Request) -> web.StreamResponse:
        """Anything else is a gap in the emulator, and is recorded as one."""
        self.backend.history.record(now(), "unknown_path", method=request.method, path=request.path)
        return web.Response(status=404, text="404 page not found")

    def _remember(self, request: web.Request) -> str:
        """The name of the connection of a request, which is watched until it closes."""
        transport = request.transport
        if transport is None:
            return ""
        peer = str(transport.get_extra_info("peername"))
        self._transports[peer] = transport
        return peer

    # --- faults

    async def _with_faults(
        self,
        request: web.Request,
        op: str,
        idle: bool | None,
        answer: Callable[[list[Fault]], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        bites = self.faults.draw(op, idle, now())
        for bite in bites:
            self.backend.history.record(now(), "fault", op=op, kind=bite.kind, status=bite.status)
        response = await self._bite(request, [bite for bite in bites if not bite.after])
        if response is not None:
            return response
        response = await answer(bites)
        return await self._bite(request, [bite for bite in bites if bite.after]) or response

    async def _bite(self, request: web.Request, bites: list[Fault]) -> web.StreamResponse | None:
        """Apply faults in order; the first one that answers ends the request."""
        for bite in bites:
            await anyio.sleep(self.faults.delay_of(bite))
            if bite.kind == "http":
                return _fault_answer(bite)
            if bite.kind == "not_running":
                return _errors(400, "Sweep is not running")
            if bite.kind == "drop" and request.transport is not None:
                request.transport.abort()
                return web.Response()
        return None

    # --- credentials

    def _is_allowed(self, request: web.Request) -> bool:
        key = _api_key(request)
        if self._api_keys:
            return key in self._api_keys
        return _WELL_FORMED_KEY.fullmatch(key) is not None

    def _refuse(self, op: str) -> web.StreamResponse:
        self.backend.history.record(now(), "key_refused", op=op)
        return _errors(401, "user is not logged in", extensions={"code": "PERMISSION_ERROR"})


def _api_key(request: web.Request) -> str:
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        user, _, key = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return key if user == "api" else ""


def _client(request: web.Request) -> str:
    """Who speaks: the User-Agent tells the command line, wandb-core and old SDKs apart."""
    return request.headers.get("User-Agent", "")


def _run_key(request: web.Request) -> RunKey:
    match = request.match_info
    return (match["entity"], match["project"], match["run"])


def _errors(status: int, message: str, **extra: Any) -> web.Response:
    return web.json_response(
        {"errors": [{"message": message, **extra}], "data": None}, status=status
    )


def _fault_answer(bite: Fault) -> web.Response:
    response = _errors(bite.status, f"emulated fault {bite.status}")
    if bite.retry_after is not None:
        response.headers["Retry-After"] = f"{bite.retry_after:g}"
    return response
