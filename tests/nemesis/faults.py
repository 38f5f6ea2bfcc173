"""The faults of the short form, by name.

Owns what each does and that it is healed when its function returns. A gentle fault keeps no node
from Redis for longer than `longest_silence`, so no overlap may follow; a long one does, and an
overlap must end soon after it.
"""

import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from shutil import rmtree
from typing import Final

import anyio
import redis.exceptions as redis_errors

from tests.nemesis.world import Member, World

Act = Callable[[World, random.Random, float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`act(world, rng, seconds)` does it, lasts about `seconds` and heals it."""

    name: str
    target: str
    """What it acts on; of each target only one fault acts at a time."""
    act: Act
    long: bool = False
    needs_clock: bool = False


async def calm(_world: World, _rng: random.Random, seconds: float) -> None:
    """Nothing: the measure for the others."""
    await anyio.sleep(seconds)


# --- the server -----------------------------------------------------------------------------------
async def frozen(world: World, _rng: random.Random, seconds: float) -> None:
    """SIGSTOP: what is sent meanwhile is executed afterwards."""
    world.redis.freeze()
    try:
        await anyio.sleep(seconds)
    finally:
        world.redis.thaw()


async def paused(world: World, _rng: random.Random, seconds: float) -> None:
    """CLIENT PAUSE: connections are taken, commands wait."""
    async with world.admin() as client:
        await client.execute_command("CLIENT", "PAUSE", round(seconds * 1000), "ALL")
    await anyio.sleep(seconds)


async def asleep(world: World, _rng: random.Random, seconds: float) -> None:
    """DEBUG SLEEP: the whole server is busy."""
    async with world.admin() as client:
        await client.execute_command("DEBUG", "SLEEP", f"{seconds:.3f}")


async def killed(world: World, rng: random.Random, seconds: float) -> None:
    """SIGKILL and a restart with all data."""
    await world.redis.kill()
    await anyio.sleep(rng.uniform(0, seconds / 2))
    await world.redis.start()


async def killed_without_data(world: World, rng: random.Random, seconds: float) -> None:
    """SIGKILL and a restart without data."""
    await world.redis.kill()
    rmtree(world.redis.socket.parent / "appendonlydir", ignore_errors=True)
    await anyio.sleep(rng.uniform(0, seconds / 2))
    await world.redis.start()
    world.driver.rehand()
    await anyio.sleep(seconds / 4)


async def wiped(world: World, _rng: random.Random, seconds: float) -> None:
    """FLUSHALL, and the server hands out at once what is alive."""
    async with world.admin() as client:
        await client.flushall()
    world.driver.rehand()
    await anyio.sleep(seconds / 2)


async def scripts_flushed(world: World, rng: random.Random, seconds: float) -> None:
    """SCRIPT FLUSH, again and again."""
    async with world.admin() as client:
        for _ in range(8):
            await client.script_flush()
            await anyio.sleep(rng.uniform(0, seconds / 4))


async def clients_killed(world: World, rng: random.Random, seconds: float) -> None:
    """CLIENT KILL of every connection, again and again."""
    async with world.admin() as client:
        for _ in range(4):
            with suppress(redis_errors.RedisError):
                await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await anyio.sleep(rng.uniform(0, seconds / 2))


async def full(world: World, _rng: random.Random, seconds: float) -> None:
    """maxmemory is reached: nothing new, but renewals and releases go on."""
    async with world.admin() as client:
        await client.config_set("maxmemory", "1")
        try:
            await anyio.sleep(2 * seconds)
        finally:
            await client.config_set("maxmemory", "0")


async def clock_ahead(world: World, rng: random.Random, seconds: float) -> None:
    """The server's wall clock jumps forward, by less than a lease lasts."""
    assert world.clock is not None
    world.clock.set(world.clock.seconds + rng.uniform(0.3, 0.9) * seconds)
    await anyio.sleep(0.1)


async def clock_back(world: World, _rng: random.Random, seconds: float) -> None:
    """The server's wall clock goes back by an hour; whoever asks now must not wait for an hour."""
    assert world.clock is not None
    world.clock.set(world.clock.seconds - 3600)
    world.driver.rehand()
    await anyio.sleep(seconds)


# --- the way to it --------------------------------------------------------------------------------
def _some(world: World, rng: random.Random) -> list[Member]:
    return rng.sample(world.members, rng.choice([1, 1, 2, 3]))


async def delayed(world: World, rng: random.Random, seconds: float) -> None:
    """Answers come late, at times too late."""
    members = _some(world, rng)
    for member in members:
        member.proxy.delay_seconds = rng.uniform(0.1, 1.3) * world.settings.timeout_seconds
    try:
        await anyio.sleep(seconds)
    finally:
        for member in members:
            member.proxy.delay_seconds = 0.0


async def black_hole(world: World, rng: random.Random, seconds: float) -> None:
    """Everything vanishes; the server takes the silent nodes' runs for dead."""
    members = _some(world, rng)
    for member in members:
        member.proxy.black_hole = True
    world.driver.rehand(members[0].name)
    try:
        await anyio.sleep(seconds)
    finally:
        for member in members:
            member.proxy.black_hole = False
            await member.proxy.reset_all()


async def black_hole_long(world: World, _rng: random.Random, seconds: float) -> None:
    """One node is cut off until others may have its runs, and get them."""
    member = _rng.choice(world.members)
    member.proxy.black_hole = True
    world.driver.rehand(member.name)
    await anyio.sleep(seconds)
    world.driver.rehand(member.name)
    await anyio.sleep(seconds / 4)
    member.proxy.black_hole = False
    await member.proxy.reset_all()


async def replies_dropped(world: World, rng: random.Random, seconds: float) -> None:
    """The server executes, the answer vanishes."""
    for member in _some(world, rng):
        member.proxy.match, member.proxy.drop_replies = b"EVALSHA", rng.randint(1, 3)
    await anyio.sleep(seconds)
    for member in world.members:
        member.proxy.drop_replies = 0


async def replies_cut(world: World, rng: random.Random, seconds: float) -> None:
    """The server executes, the connection ends."""
    for member in world.members:
        member.proxy.match, member.proxy.cut_replies = b"EVALSHA", rng.randint(1, 6)
    await anyio.sleep(seconds)
    for member in world.members:
        member.proxy.cut_replies = 0


async def links_reset(world: World, rng: random.Random, seconds: float) -> None:
    """Every connection ends, again and again."""
    for _ in range(5):
        for member in world.members:
            await member.proxy.reset_all()
        await anyio.sleep(rng.uniform(0, seconds / 3))


# --- the nodes ------------------------------------------------------------------------------------
async def stack_frozen(world: World, rng: random.Random, seconds: float) -> None:
    """SIGSTOP of a whole stack; its trainings go on and others are given them."""
    member = rng.choice(world.members)
    member.send(signal.SIGSTOP)
    world.driver.rehand(member.name)
    try:
        await anyio.sleep(seconds)
    finally:
        member.send(signal.SIGCONT)


async def stack_killed(world: World, rng: random.Random, seconds: float) -> None:
    """SIGKILL of a stack; the next one adopts its trainings."""
    member = rng.choice(world.members)
    await world.prepare(member)
    await world.kill(member)
    world.driver.rehand(member.name)
    await anyio.sleep(rng.uniform(0, seconds / 2))
    await world.start(member)
    await anyio.sleep(seconds / 4)


async def stack_killed_long(world: World, rng: random.Random, seconds: float) -> None:
    """The same, and nobody comes back until others have its runs."""
    member = rng.choice(world.members)
    await world.prepare(member)
    await world.kill(member)
    world.driver.rehand(member.name)
    await anyio.sleep(seconds)
    world.driver.rehand(member.name)
    await anyio.sleep(seconds / 4)
    await world.start(member)


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
    Fault("node frozen (SIGSTOP)", "node", stack_frozen),
    Fault("node killed, restarted", "node", stack_killed),
)
LONG_FAULTS: Final = (
    Fault("redis frozen, long", "redis", frozen, long=True),
    Fault("link black hole, long", "link", black_hole_long, long=True),
    Fault("node frozen, long", "node", stack_frozen, long=True),
    Fault("node killed, back late", "node", stack_killed_long, long=True),
)
MIXED: Final = "mixed"
