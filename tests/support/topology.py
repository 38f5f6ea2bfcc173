"""Redis in its larger forms: a primary and a replica watched by Sentinels, and a Cluster.

Owns the processes that it starts. All listen on loopback only.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from redis.exceptions import RedisError

from tests.support.redis import FaultProxy, RedisServer, free_port, redis_server

SERVICE = "leases"
LOOPBACK = ("--bind", "127.0.0.1")
AT_ONCE = ("--repl-diskless-sync-delay", "0")


async def ask(server: RedisServer, *command: str | float) -> Any:
    """One command to one server."""
    async with server.client() as client:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(30):
        while not await condition():  # noqa: ASYNC110 - other processes have no event
            await anyio.sleep(0.02)


def sentinel_url(*ports: int) -> str:
    """The address for clients."""
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{SERVICE}"


@dataclass
class Guarded:
    """`link` is what the replica reads from its primary through."""

    primary: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]
    link: FaultProxy
    url: str

    async def fail_over(self) -> None:
        """Until the replica takes writes; the old primary answers on."""

        async def accepted() -> bool:
            try:
                await ask(self.sentinels[0], "SENTINEL", "FAILOVER", SERVICE)
            except RedisError as error:  # on a busy machine the replica seems to be away
                if "NOGOODSLAVE" not in str(error):
                    raise
                return False
            return True

        await _until(accepted)

        async def promoted() -> bool:
            with suppress(RedisError):  # its clients are cut off
                return bool((await ask(self.replica, "ROLE"))[0] == "master")
            return False

        await _until(promoted)


@asynccontextmanager
async def guarded_redis(directory: Path, *replica_options: str) -> AsyncIterator[Guarded]:
    """A primary, a replica and three Sentinels that know both."""
    async with AsyncExitStack() as stack:

        async def start(
            name: str, *options: str, sentinel: Path | None = None
        ) -> tuple[RedisServer, int]:
            home, port = directory / name, free_port()
            home.mkdir()
            server = redis_server(home, "--port", str(port), *LOOPBACK, *options, sentinel=sentinel)
            return await stack.enter_async_context(server), port

        primary, primary_port = await start("primary", *AT_ONCE)
        link = await stack.enter_async_context(FaultProxy(primary.socket).serve())
        replica, _ = await start(
            "replica",
            *("--replicaof", f"127.0.0.1 {link.port}", "--replica-announce-ip", "127.0.0.1"),
            *replica_options,
        )
        sentinels, ports = [], []
        for number in range(3):
            config = directory / f"sentinel{number}.conf"
            config.write_text(
                f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 60000\n"
            )
            sentinel, port = await start(f"sentinel{number}", sentinel=config)
            sentinels.append(sentinel)
            ports.append(port)
        found = Guarded(primary, replica, sentinels, link, sentinel_url(free_port(), *ports))
        await _until_known(found)
        yield found


async def _until_known(guarded: Guarded) -> None:
    async def known() -> bool:
        linked = (await ask(guarded.replica, "ROLE"))[3] == "connected"
        seen = [await ask(each, "SENTINEL", "REPLICAS", SERVICE) for each in guarded.sentinels]
        return linked and all(seen)

    await _until(known)


@dataclass
class Cluster:
    """Its nodes, each with a third of the slots."""

    nodes: list[RedisServer]
    ids: list[str]
    ports: list[int]
    url: str

    async def owner(self, key: str) -> int:
        """Index of the node that holds `key`."""
        slot = await ask(self.nodes[0], "CLUSTER", "KEYSLOT", key)
        for first, last, (_, port, *_), *_ in await ask(self.nodes[0], "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self.ports.index(port)
        raise AssertionError(slot)

    async def move(self, key: str, target: int) -> None:
        """The slot of `key` goes to node `target`, with what is in it."""
        source, slot = await self.owner(key), await ask(self.nodes[0], "CLUSTER", "KEYSLOT", key)
        here, there = self.nodes[source], self.nodes[target]
        await ask(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        await ask(here, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])
        while keys := await ask(here, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            place = ("127.0.0.1", self.ports[target], "", 0, 5000)
            await ask(here, "MIGRATE", *place, "KEYS", *keys)
        for node in (there, here, *self.nodes):
            await ask(node, "CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])


@asynccontextmanager
async def cluster_redis(directory: Path) -> AsyncIterator[Cluster]:
    """A Cluster of three primaries."""
    async with AsyncExitStack() as stack:
        nodes, ports, ids = [], [], []
        for number in range(3):
            home, port = directory / f"node{number}", free_port()
            home.mkdir()
            options = ["--port", str(port), *LOOPBACK, "--cluster-enabled", "yes"]
            options += ["--cluster-port", str(free_port())]
            node = await stack.enter_async_context(redis_server(home, *options))
            nodes.append(node)
            ports.append(port)
            ids.append(await ask(node, "CLUSTER", "MYID"))
            last = 16383 if number == 2 else 5461 * (number + 1) - 1
            await ask(node, "CLUSTER", "ADDSLOTSRANGE", 5461 * number, last)
            await ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        bus = await _bus_port(nodes[0])
        for node in nodes[1:]:
            await ask(node, "CLUSTER", "MEET", "127.0.0.1", ports[0], bus)
        await _until_formed(nodes)
        yield Cluster(
            nodes, ids, ports, f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{ports[0]}"
        )


async def _bus_port(node: RedisServer) -> int:
    async with node.client() as client:
        return int(str((await client.config_get("cluster-port"))["cluster-port"]))


async def _until_formed(nodes: list[RedisServer]) -> None:
    async def formed() -> bool:
        states = [str(await ask(node, "CLUSTER", "INFO")) for node in nodes]
        shares = [len(await ask(node, "CLUSTER", "SLOTS")) for node in nodes]
        return all("cluster_state:ok" in each for each in states) and min(shares) == len(nodes)

    await _until(formed)
