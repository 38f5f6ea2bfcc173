"""The metadata services of three clouds as their vendors document them, on loopback.

Owns the refusals too: a request that the real service would refuse is refused here. Sources: EC2
User Guide, "Use the Instance Metadata Service" and "Spot Instance interruption notices" (AWS's own
stand-in, github.com/aws/amazon-ec2-metadata-mock, answers alike); Compute Engine, "Query VM
metadata"; "Azure Metadata Service: Scheduled Events for Linux VMs". moto has none of these paths.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
from aiohttp import web

BASE = "/latest/meta-data"


def in_seconds(seconds: float, now: datetime | None = None) -> datetime:
    """A time as whole seconds, which is all that the documents can say."""
    return ((now or datetime.now(UTC)) + timedelta(seconds=seconds)).replace(microsecond=0)


@dataclass
class Service:
    """What all three share: an address, the requests so far, a clock of its own."""

    url: str = ""
    clock_offset_seconds: float = 0.0
    requests: list[str] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        """The service's own time."""
        return datetime.now(UTC) + timedelta(seconds=self.clock_offset_seconds)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        self.requests.append(f"{request.method} {request.path}")
        response = await self.handle(request)
        response.headers["Date"] = format_datetime(self.now, usegmt=True)
        return response

    async def handle(self, request: web.Request) -> web.Response:
        raise NotImplementedError


@dataclass
class Ec2(Service):
    """IMDSv2: a token by PUT, and documents that are 404 until there is something to say."""

    documents: dict[str, Any] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    def interrupt(self, action: str, seconds: float) -> datetime:
        """Announce an interruption; its time."""
        at = in_seconds(seconds, self.now)
        self.documents["spot/instance-action"] = {
            "action": action, "time": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip
        return at

    def recommend(self) -> None:
        """Recommend to rebalance."""
        said = {"noticeTime": in_seconds(0, self.now).strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.documents["events/recommendations/rebalance"] = said

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "PUT" and request.path == "/latest/api/token":
            ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if not (ttl.isdecimal() and 1 <= int(ttl) <= 21600):
                return web.Response(status=400)
            token = f"token{len(self.requests)}=="
            self.tokens.add(token)
            return web.Response(text=token)
        if request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return web.Response(status=401)
        document = self.documents.get(request.path.removeprefix(f"{BASE}/"))
        return web.Response(status=404) if document is None else web.json_response(document)


@dataclass
class Gce(Service):
    """Values with an ETag, and requests that wait for another one."""

    values: dict[str, str] = field(
        default_factory=lambda: {"preempted": "FALSE", "maintenance-event": "NONE"}
    )
    changed: anyio.Event = field(default_factory=anyio.Event)

    def set(self, key: str, value: str) -> None:
        """Change a value; whoever waits is answered."""
        self.values[key] = value
        self.changed.set()
        self.changed = anyio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        key = request.path.removeprefix("/computeMetadata/v1/instance/")
        if key not in self.values:
            return web.Response(status=404)
        if request.query.get("wait_for_change") == "true":
            with anyio.move_on_after(float(request.query.get("timeout_sec", "inf"))):
                while request.query.get("last_etag") == self._etag(key):
                    await self.changed.wait()
        headers = {"ETag": self._etag(key), "Metadata-Flavor": "Google"}
        return web.Response(text=self.values[key], headers=headers)

    def _etag(self, key: str) -> str:
        return f"{hash(self.values[key]) & 0xFFFFFFFF:x}"


@dataclass
class Azure(Service):
    """Scheduled events of a set of machines, and their acknowledgement."""

    name: str = "vmss_1"
    events: list[dict[str, Any]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    refuses_starts: bool = False

    def schedule(self, kind: str, seconds: float, *machines: str) -> str:
        """Schedule an event; its ID."""
        identity = f"E{len(self.events) + 1}"
        not_before = format_datetime(in_seconds(seconds, self.now), usegmt=True)
        self.events.append({
            "EventId": identity, "EventStatus": "Scheduled", "EventType": kind,
            "ResourceType": "VirtualMachine", "Resources": list(machines) or [self.name],
            "NotBefore": not_before, "Description": "", "EventSource": "Platform",
            "DurationInSeconds": -1,
        })  # fmt: skip
        return identity

    async def handle(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata") != "true" or "api-version" not in request.query:
            return web.Response(status=400)
        if request.path == "/metadata/instance/compute/name":
            return web.Response(text=self.name)
        if request.path != "/metadata/scheduledevents":
            return web.Response(status=404)
        if request.method == "POST" and self.refuses_starts:
            return web.Response(status=500)
        if request.method == "POST":
            self._start([item["EventId"] for item in (await request.json())["StartRequests"]])
            return web.Response()
        return web.json_response(
            {"DocumentIncarnation": len(self.events) + len(self.started), "Events": self.events}
        )

    def _start(self, identities: list[str]) -> None:
        for event in self.events:
            if event["EventId"] in identities:
                event.update(EventStatus="Started", NotBefore="")
                self.started.append(event["EventId"])


class Nothing(Service):
    """A server that knows none of the paths."""

    async def handle(self, request: web.Request) -> web.Response:
        return web.Response(status=404)


@asynccontextmanager
async def served(service: Service, port: int = 0) -> AsyncIterator[None]:
    """Have `service` answer on a port of the loopback interface."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield
    finally:
        await runner.cleanup()
