"""The faults of the short form, by name.

Owns what each does and that it is healed when its function returns. A gentle fault keeps no node
from Redis for longer than `longest_silence`, so no overlap may follow; a long one does, and an
overlap must end soon after it.
"""

import random
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from shutil import rmtree
from typing import Any, Final

import anyio
import redis.exceptions as redis_errors
from redis.asyncio import Redis

from tests.nemesis.place import Place

Act = Callable[[Place, random.Random, float], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`act(place, rng, seconds)` does it, lasts about `seconds` and heals it."""

    name: str
    target: str
    """What it acts on; of each target only one fault acts at a time."""
    act: Act
    long: bool = False
    needs_clock: bool = False


async def calm(_place: Place, _rng: random.Random, seconds: float) -> None:
    """Nothing: the measure for the others."""
    await anyio.sleep(seconds)


# --- the server -----------------------------------------------------------------------------------
async def frozen(place: Place, _rng: random.Random, seconds: float) -> None:
    """SIGSTOP: what is sent meanwhile is executed afterwards."""
    place.redis.freeze()
    try:
        await anyio.sleep(seconds)
    finally:
        place.redis.thaw()


async def paused(place: Place, _rng: random.Random, seconds: float) -> None:
    """CLIENT PAUSE: connections are taken, commands wait."""
    async with place.admin() as client:
        await client.client_pause(round(seconds * 1000))
    await anyio.sleep(seconds)


async def command(client: Redis, *words: object) -> None:
    """One that redis-py has no word for."""
    await client.execute_command(*words)  # type: ignore[no-untyped-call]


async def asleep(place: Place, _rng: random.Random, seconds: float) -> None:
    """DEBUG SLEEP: the whole server is busy."""
    async with place.admin() as client:
        await command(client, "DEBUG", "SLEEP", f"{seconds:.3f}")


async def killed(place: Place, rng: random.Random, seconds: float) -> None:
    """SIGKILL and a restart with all data."""
    await place.redis.kill()
    await anyio.sleep(rng.uniform(0, seconds / 2))
    await place.redis.start()


async def killed_without_data(place: Place, rng: random.Random, seconds: float) -> None:
    """SIGKILL and a restart without data."""
    await place.redis.kill()
    rmtree(place.redis.socket.parent / "appendonlydir", ignore_errors=True)
    await anyio.sleep(rng.uniform(0, seconds / 2))
    await place.redis.start()
    await place.rehand()
    await anyio.sleep(seconds / 4)


async def wiped(place: Place, _rng: random.Random, seconds: float) -> None:
    """FLUSHALL, and the server hands out at once what is alive."""
    async with place.admin() as client:
        await client.flushall()
    await place.rehand()
    await anyio.sleep(seconds / 2)


async def scripts_flushed(place: Place, rng: random.Random, seconds: float) -> None:
    """SCRIPT FLUSH, again and again."""
    async with place.admin() as client:
        for _ in range(8):
            await client.script_flush()
            await anyio.sleep(rng.uniform(0, seconds / 4))


async def clients_killed(place: Place, rng: random.Random, seconds: float) -> None:
    """CLIENT KILL of every connection, again and again."""
    async with place.admin() as client:
        for _ in range(4):
            with suppress(redis_errors.RedisError):
                await command(client, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await anyio.sleep(rng.uniform(0, seconds / 2))


async def full(place: Place, _rng: random.Random, seconds: float) -> None:
    """maxmemory is reached: nothing new, but renewals and releases go on."""
    async with place.admin() as client:
        await client.config_set("maxmemory", "1")
        try:
            await anyio.sleep(2 * seconds)
        finally:
            await client.config_set("maxmemory", "0")


async def clock_ahead(place: Place, rng: random.Random, seconds: float) -> None:
    """The server's wall clock jumps forward, by less than a lease lasts."""
    assert place.clock is not None
    place.clock.set(place.clock.seconds + rng.uniform(0.3, 0.9) * seconds)
    await anyio.sleep(0.1)


async def clock_back(place: Place, _rng: random.Random, seconds: float) -> None:
    """The server's wall clock goes back by an hour; whoever asks now must not wait for an hour."""
    assert place.clock is not None
    place.clock.set(place.clock.seconds - 3600)
    await place.rehand()
    await anyio.sleep(seconds)


# --- the way to it --------------------------------------------------------------------------------
def _some(place: Place, rng: random.Random) -> list[str]:
    return rng.sample(place.nodes, rng.choice([1, 1, 2, 3]))


async def delayed(place: Place, rng: random.Random, seconds: float) -> None:
    """Answers come late, at times too late."""
    nodes = _some(place, rng)
    for node in nodes:
        place.proxies[node].delay_seconds = rng.uniform(0.1, 1.3) * place.settings.timeout_seconds
    try:
        await anyio.sleep(seconds)
    finally:
        for node in nodes:
            place.proxies[node].delay_seconds = 0.0


async def black_hole(place: Place, rng: random.Random, seconds: float) -> None:
    """Everything vanishes; the server takes the silent nodes' runs for dead."""
    nodes = _some(place, rng)
    for node in nodes:
        place.proxies[node].black_hole = True
    await place.rehand(nodes[0])
    try:
        await anyio.sleep(seconds)
    finally:
        for node in nodes:
            place.proxies[node].black_hole = False
            await place.proxies[node].reset_all()


async def black_hole_long(place: Place, rng: random.Random, seconds: float) -> None:
    """One node is cut off until others may have its runs, and get them."""
    node = rng.choice(place.nodes)
    place.proxies[node].black_hole = True
    await place.rehand(node)
    await anyio.sleep(seconds)
    await place.rehand(node)
    await anyio.sleep(seconds / 4)
    place.proxies[node].black_hole = False
    await place.proxies[node].reset_all()


async def replies_dropped(place: Place, rng: random.Random, seconds: float) -> None:
    """The server executes, the answer vanishes."""
    for node in _some(place, rng):
        place.proxies[node].match, place.proxies[node].drop_replies = b"EVALSHA", rng.randint(1, 3)
    await anyio.sleep(seconds)
    for node in place.nodes:
        place.proxies[node].drop_replies = 0


async def replies_cut(place: Place, rng: random.Random, seconds: float) -> None:
    """The server executes, the connection ends."""
    for node in place.nodes:
        place.proxies[node].match, place.proxies[node].cut_replies = b"EVALSHA", rng.randint(1, 6)
    await anyio.sleep(seconds)
    for node in place.nodes:
        place.proxies[node].cut_replies = 0


async def links_reset(place: Place, rng: random.Random, seconds: float) -> None:
    """Every connection ends, again and again."""
    for _ in range(5):
        for node in place.nodes:
            await place.proxies[node].reset_all()
        await anyio.sleep(rng.uniform(0, seconds / 3))


# --- the nodes ------------------------------------------------------------------------------------
async def node_frozen(place: Place, rng: random.Random, seconds: float) -> None:
    """SIGSTOP of a whole stack; its trainings go on and others are given them."""
    node = rng.choice(place.nodes)
    place.send(node, signal.SIGSTOP)
    await place.rehand(node)
    try:
        await anyio.sleep(seconds)
    finally:
        place.send(node, signal.SIGCONT)


async def node_killed(place: Place, rng: random.Random, seconds: float) -> None:
    """SIGKILL of a stack; the next one adopts its trainings."""
    node = rng.choice(place.nodes)
    await place.prepare(node)
    await place.kill(node)
    await place.rehand(node)
    await anyio.sleep(rng.uniform(0, seconds / 2))
    await place.start(node)
    await anyio.sleep(seconds / 4)


async def node_killed_long(place: Place, rng: random.Random, seconds: float) -> None:
    """The same, and nobody comes back until others have its runs."""
    node = rng.choice(place.nodes)
    await place.prepare(node)
    await place.kill(node)
    await place.rehand(node)
    await anyio.sleep(seconds)
    await place.rehand(node)
    await anyio.sleep(seconds / 4)
    await place.start(node)


FAULTS: Final = (
    Fault("none", "nothing", calm),
    Fault("redis frozen (SIGSTOP)", "redis", frozen),
    Fault("redis paused (CLIENT PAUSE)", "redis", paused),
    Fault("redis busy (DEBUG SLEEP)", "redis", asleep),
    Fault("redis killed, data kept", "redis", killed),
    Fault("redis killed, data lost", "redis", killed_without_data),
    Fault("redis wiped (FLUSHALL)", "redis", wiped),
    Fault("redis forgets scripts", "redis", scripts_flushed),
    Fault("redis drops clients", "redis", clients_killed),
    Fault("redis full", "redis", full),
    Fault("redis clock ahead", "clock", clock_ahead, needs_clock=True),
    Fault("redis clock back 1 h", "clock", clock_back, needs_clock=True),
    Fault("link slow", "link", delayed),
    Fault("link black hole", "link", black_hole),
    Fault("link drops replies", "link", replies_dropped),
    Fault("link cut after request", "link", replies_cut),
    Fault("link reset", "link", links_reset),
    Fault("node frozen (SIGSTOP)", "node", node_frozen),
    Fault("node killed, restarted", "node", node_killed),
)
LONG_FAULTS: Final = (
    Fault("redis frozen, long", "redis", frozen, long=True),
    Fault("link black hole, long", "link", black_hole_long, long=True),
    Fault("node frozen, long", "node", node_frozen, long=True),
    Fault("node killed, back late", "node", node_killed_long, long=True),
)
MIXED: Final = "mixed"
