"""A real gateway between a scripted W&B server and a scripted desk, with a client for an agent.

Owns the sockets of one test. Nothing here is a test.
"""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from aiohttp import ClientSession, ClientTimeout, web
from yarl import URL

from coordinator.core.wire import Orders
from coordinator.gateway import Endpoint, Gateway, IdleBeat
from coordinator.gateway.desk import Reply

SECONDS = 20.0
TOKEN = "secret-token"
SHIM = ["python", "-I", "-S", "shim.py"]
DATA = Path(__file__).parents[1] / "data"

Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


def recorded(operation: str, number: int = 0) -> tuple[bytes, bytes]:
    """A request of a real agent (wandb 0.31) and what the emulator answered."""
    pairs = json.loads((DATA / "wire-0.31.0.json").read_text())
    found = [pair for pair in pairs if operation in pair["request"]][number]
    return found["request"].encode(), found["answer"].encode()


@dataclass
class Asked:
    """A request as it reached the W&B server; its body is as it was on the wire."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Desk:
    """Notes what it is told; `idle` answers what the test says."""

    known: set[str] = field(default_factory=lambda: {TOKEN})
    told: list[tuple[str, Any]] = field(default_factory=list)
    held: anyio.Event = field(default_factory=anyio.Event)
    dropped: anyio.Event = field(default_factory=anyio.Event)
    answer: Callable[[IdleBeat], Awaitable[bytes]] | None = None
    guest: str | None = None
    """What `turned_away` answers."""
    passes_on: bool = True
    """What `ordered` answers."""
    run_goes_on: bool = True
    """What `due` answers."""

    def knows(self, token: str) -> bool:
        return token in self.known

    def registered(self, token: str, agent_id: str) -> None:
        self.told.append(("registered", (token, agent_id)))

    def turned_away(self, token: str, reply: Reply) -> str | None:
        self.told.append(("turned_away", (token, reply)))
        return self.guest

    def is_guest(self, token: str) -> bool:
        return token == TOKEN and self.guest is not None

    def troubled(self, token: str, reply: Reply) -> None:
        self.told.append(("troubled", (token, reply.status)))

    async def due(self, token: str) -> bool:
        assert self.knows(token)
        return self.run_goes_on

    def ordered(self, token: str, orders: Orders) -> bool:
        self.told.append(("ordered", (token, orders)))
        return self.passes_on

    async def idle(self, token: str, beat: IdleBeat) -> bytes:
        self.told.append(("idle", (token, beat.agent_id)))
        self.held.set()
        try:
            if self.answer is None:
                await anyio.sleep_forever()
            else:
                return await self.answer(beat)
        except anyio.get_cancelled_exc_class():
            self.dropped.set()
            raise
        raise AssertionError("sleep_forever returned")


@dataclass
class Stage:
    """What a test works with."""

    address: str
    client: ClientSession
    desk: Desk
    asked: list[Asked]
    upstream: "Upstream"

    async def graphql(self, body: bytes, **headers: str) -> tuple[int, bytes]:
        """One GraphQL request of an agent."""
        status, answer, _ = await self.request("POST", "graphql", body, **headers)
        return status, answer

    async def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        sent = {"Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        with anyio.fail_after(SECONDS):
            async with self.client.request(
                method,
                URL(f"{self.address}/{path}", encoded=True),
                data=None if body is None else io.BytesIO(body),
                headers=sent,
                allow_redirects=False,
            ) as response:
                return response.status, await response.read(), dict(response.headers)


@dataclass
class Upstream:
    """What the W&B server answers; `port` is where it listens."""

    answer: Answer
    runner: web.AppRunner
    port: int = 0

    async def die(self) -> None:
        """Nobody listens on the port any more."""
        await self.runner.cleanup()


async def ok(_request: web.Request, _body: bytes) -> web.StreamResponse:
    return web.json_response({"data": {}})


def says(body: bytes, status: int = 200, **headers: str) -> Answer:
    """The same answer to whatever comes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=named)

    return answer


async def _serve(runner: web.AppRunner) -> int:
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port: int = runner.addresses[0][1]
    return port


@asynccontextmanager
async def staged(answer: Answer = ok, base: str = "") -> AsyncIterator[Stage]:
    """Everything up; `base` is a path in the address of the W&B server."""
    asked: list[Asked] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked.append(Asked(request.method, request.raw_path, dict(request.headers), body))
        return await upstream.answer(request, body)

    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{tail:.*}", handle)
    # Bodies as they were on the wire, so without undoing their compression.
    runner = web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=1)
    upstream = Upstream(answer, runner)
    desk = Desk()
    try:
        upstream.port = await _serve(runner)
        async with (
            ClientSession() as towards,
            ClientSession(timeout=ClientTimeout(total=SECONDS)) as client,
            anyio.create_task_group() as group,
        ):
            endpoint, target = Endpoint(), f"http://127.0.0.1:{upstream.port}{base}"
            gateway = Gateway(endpoint, target, towards, desk, SHIM)
            await group.start(gateway.run)
            yield Stage(endpoint.address(TOKEN), client, desk, asked, upstream)
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()
