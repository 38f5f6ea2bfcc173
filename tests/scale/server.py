"""The Redis under test, and what it says of its own work.

Owns the server process and the reading of its INFO. Its figures are differences between two looks,
so what the play itself asks is in them: a few calls a phase.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from redis.asyncio import Redis

from coordinator.leases.keys import Keys
from tests.scale.node import SWEEP
from tests.support.redis import RedisServer, free_port

SLOW_MICROSECONDS = 2000
AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
"""As the embedded server is run."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the server has done between two looks."""

    seconds: float
    cpu_seconds: float
    calls: dict[str, int]
    """By command; what a script calls is not counted."""
    microseconds: dict[str, float]
    """Spent in those commands, by command."""
    percentiles: str
    """Of one script call, as the server measured it."""
    slow: list[tuple[int, str]]
    """The longest calls: microseconds, and what."""
    connections: int
    memory: int
    dataset: int

    @property
    def share(self) -> float:
        """Of one core."""
        return self.cpu_seconds / self.seconds

    @property
    def calls_per_second(self) -> float:
        """Script calls and whatever else nodes ask for."""
        return sum(self.calls.values()) / self.seconds


class Scene:
    """The server under test, with a client of its own that no node shares."""

    def __init__(self, server: RedisServer, url: str) -> None:
        self.server = server
        self.url = url
        self._seen: dict[str, Any] = {}
        self._at = 0.0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Redis]:
        """For one exchange."""
        client = Redis.from_url(f"unix://{self.server.socket}", decode_responses=True)
        try:
            yield client
        finally:
            await client.aclose()

    async def begin(self) -> None:
        """Count from now on."""
        async with self.client() as client:
            await client.config_resetstat()
            await client.config_set("slowlog-log-slower-than", SLOW_MICROSECONDS)
            await client.slowlog_reset()
            self._seen = dict(await client.info("everything"))
        self._at = monotonic()

    async def end(self) -> Work:
        """What was done since `begin`. A server that was restarted meanwhile counts from there."""
        async with self.client() as client:
            seen = dict(await client.info("everything"))
            slow = await client.slowlog_get(128)
        seconds = monotonic() - self._at
        restarted = seen["run_id"] != self._seen["run_id"]
        before = 0.0 if restarted else _cpu(self._seen)
        stats = {name.removeprefix("cmdstat_"): value for name, value in seen.items()
                 if name.startswith("cmdstat_") and _is_asked(name)}  # fmt: skip
        spent = seen.get("latency_percentiles_usec_evalsha", {})
        return Work(
            seconds=seconds,
            cpu_seconds=_cpu(seen) - before,
            calls={name: int(stat["calls"]) for name, stat in stats.items()},
            microseconds={name: float(stat["usec"]) for name, stat in stats.items()},
            percentiles=" ".join(f"{name}={value:g}" for name, value in spent.items()),
            slow=sorted(((int(s["duration"]), _what(s)) for s in slow), reverse=True),
            connections=int(seen["connected_clients"]) - 1,
            memory=int(seen["used_memory"]),
            dataset=int(seen["used_memory_dataset"]),
        )

    async def bytes_of_run(self, run_id: str) -> tuple[int, int]:
        """Of its lease and of its entry in the registry."""
        keys = Keys(SWEEP)
        async with self.client() as client:
            lease = await client.memory_usage(keys.lease(run_id))
            run = await client.memory_usage(keys.run(run_id))
        return int(lease or 0), int(run or 0)

    async def name(self) -> str:
        """Program and version."""
        async with self.client() as client:
            info = await client.info("server")
        version = info.get("valkey_version")
        return f"Valkey {version}" if version else f"Redis {info['redis_version']}"


def _cpu(info: dict[str, Any]) -> float:
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


_ASKED = {"evalsha", "eval", "xread", "info", "hello", "client|setinfo", "select", "auth", "ping"}


def _is_asked(name: str) -> bool:
    return name.removeprefix("cmdstat_") in _ASKED


def _what(entry: dict[str, Any]) -> str:
    words = entry["command"]
    text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    return text[:60]


@asynccontextmanager
async def scene(directory: Path, program: str | None) -> AsyncIterator[Scene]:
    """A server on TCP, as nodes of a cluster would reach it; its data are in `directory`."""
    from tests.support.redis import redis_server

    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", *AOF)
    async with redis_server(directory, *options, program=program) as server:
        yield Scene(server, f"redis://127.0.0.1:{port}")
