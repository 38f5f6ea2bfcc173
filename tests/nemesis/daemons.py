"""The long form: three real daemons with real agents and trainings on the racy emulator.

Owns the emulator, the Redis, the daemons and the sum. Judged as the short form is, by the records
of the trainings, and by the emulator's history.
"""

import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from coordinator.core.lease import LeaseSettings
from tests.nemesis.faults import FAULTS, LONG_FAULTS, Fault
from tests.nemesis.judge import Stay, overlaps, read_stays
from tests.nemesis.place import Place
from tests.nemesis.play import episode, mixture, window
from tests.nemesis.verdict import Result, Row, judge
from tests.support.emulator import Emulator, start_emulator
from tests.support.node import Node, sweep_config
from tests.support.redis import FaultProxy, RedisServer, redis_server

NODES = ("a", "b", "c")
SLOTS = 2
TRAINING = Path(__file__).with_name("wandb_training.py")
SCALED = LeaseSettings(
    ttl_seconds=20.0,
    renew_seconds=3.0,
    grace_seconds=10.0,
    handoff_seconds=10.0,
    race_window_seconds=10.0,
    timeout_seconds=1.5,
    stop_budget_seconds=5.0,
)
"""A third of the defaults: a daemon's restart must fit into the silence that a lease survives."""
SLACK_SECONDS = 2.0
DRAIN_SECONDS = 600.0
FINISHING_SECONDS = 5.0
"""What a training may take from its last report to its end."""
ENDED: Final = frozenset({"finished", "failed", "killed"})
COME_BACK: Final = frozenset(
    {"preempted", "fenced", "finished", "crashed", "interrupted", "lost_claim"}
)
"""Outcomes after which the server or the rescue queue must train a run again, or has its end."""
ATTEMPTS: Final = 3
"""`[rescue] max_attempts`: with more stays than that a run may have been given up."""
Say = Callable[[str], None]


@dataclass
class Daemons(Place):
    """See the module."""

    redis: RedisServer
    emulator: Emulator
    settings: LeaseSettings
    members: dict[str, Node]
    proxies: dict[str, FaultProxy]
    records: Path
    clock: None = None
    slots: int = SLOTS * len(NODES)
    slack_seconds: float = SLACK_SECONDS
    killed: list[tuple[float, str]] = field(default_factory=list)
    """When which daemon was killed or told to end."""
    codes: list[tuple[str, int]] = field(default_factory=list)
    """Exit codes of daemons that were not killed."""

    @property
    def living(self) -> list[str]:
        """Nodes whose daemon is there."""
        members = self.members.items()
        return [name for name, node in members if node.process and node.process.poll() is None]

    def trainings(self, node: str | None = None) -> list[Stay]:
        """Those that live now, as far as their records tell."""
        now = anyio.current_time()
        stays = read_stays(self.records)
        return [
            s
            for s in stays
            if s.state == "alive" and now - s.ended < 1.0 and node in {None, s.node}
        ]

    async def rehand(self, node: str | None = None) -> None:
        """The server takes them for silent; those that are marked are queued again."""
        for stay in self.trainings(node):
            with suppress(AssertionError):
                await anyio.to_thread.run_sync(self.emulator.silence_run, stay.run_id)

    def send(self, node: str, signum: int) -> None:
        """See `Place`."""
        process = self.members[node].process
        if process is not None and process.poll() is None:
            process.send_signal(signum)

    async def prepare(self, node: str) -> None:
        """Nothing can be prepared."""

    async def kill(self, node: str) -> None:
        """See `Place`."""
        self.killed.append((anyio.current_time(), node))
        self.send(node, signal.SIGKILL)
        await self.gone(node)

    async def gone(self, node: str) -> int:
        """Wait for its end; its exit code."""
        return await anyio.to_thread.run_sync(partial(self.members[node].wait, 120))

    async def start(self, node: str) -> None:
        """See `Place`."""
        await anyio.to_thread.run_sync(self.members[node].start)


async def preempted(place: Place, rng: random.Random, seconds: float) -> None:
    """SIGTERM to a daemon, as SLURM sends it, and a new daemon."""
    assert isinstance(place, Daemons)
    node = rng.choice(place.nodes)
    place.send(node, signal.SIGTERM)
    place.killed.append((anyio.current_time(), node))
    place.codes.append((node, await place.gone(node)))
    await anyio.sleep(rng.uniform(0, seconds / 2))
    await place.start(node)


async def training_killed(place: Place, rng: random.Random, seconds: float) -> None:
    """SIGKILL to one training."""
    assert isinstance(place, Daemons)
    living = place.trainings()
    if living:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(living).pid, signal.SIGKILL)
    await anyio.sleep(seconds / 4)


OWN_FAULTS: Final = (
    Fault("daemon preempted, restarted", "node", preempted),
    Fault("training killed", "training", training_killed),
)


# --- the play -------------------------------------------------------------------------------------
async def play_daemons(
    directory: Path, *, seconds: float, seed: int, long: bool, leases: bool, scaled: bool, say: Say
) -> Result:
    """Mixed faults, then quiet until the sweep is done; judged."""
    settings = SCALED if scaled else LeaseSettings()
    trained = settings.settle_seconds * (2.0 if long else 0.5)
    config = sweep_config(
        12 + round(0.75 * SLOTS * len(NODES) * seconds / trained), seconds=trained
    )
    config["program"] = str(TRAINING)
    rng, rows = random.Random(seed), list[Row]()
    pool = [f for f in (*FAULTS, *OWN_FAULTS) if f.target != "nothing" and not f.needs_clock]
    unplayed = pool  # episodes are few, so each fault has its turn before any comes again
    async with open_daemons(directory, config, settings, seed, leases=leases) as place:
        with anyio.fail_after(180):
            while not place.trainings():  # noqa: ASYNC110 - other processes begin them
                await anyio.sleep(0.5)
        end = anyio.current_time() + seconds
        while anyio.current_time() < end and len(place.living) == len(NODES):
            unplayed = unplayed if len({f.target for f in unplayed}) > 1 else pool
            faults = mixture(rng, unplayed, LONG_FAULTS if long else ())
            unplayed = [fault for fault in unplayed if fault not in faults]
            name = " + ".join(fault.name for fault in faults)
            say(f"{seconds - end + anyio.current_time():6.0f} s  {name}")
            async with window(rows, name, long=any(f.long for f in faults)) as row:
                await episode(place, rng, faults, row)
        left = await finish(place)
        return sum_up(place, rows, left)


@asynccontextmanager
async def open_daemons(
    directory: Path, config: dict[str, Any], settings: LeaseSettings, seed: int, *, leases: bool
) -> AsyncIterator[Daemons]:
    """Everything runs; nothing is left of it afterwards but its files."""
    records = directory / "n" / "records"
    for path in (directory / "redis", records):
        path.mkdir(parents=True)
    flags = ["--racy-window", "8", "--seed", str(seed)]
    flags += ["--crash-seconds", "60", "--reserve-seconds", "60"]
    emulator = await anyio.to_thread.run_sync(start_emulator, directory / "emulator", *flags)
    async with AsyncExitStack() as stack:
        stack.callback(emulator.stop)
        options = ["--appendonly", "yes", "--enable-debug-command", "yes"]
        redis = await stack.enter_async_context(redis_server(directory / "redis", *options))
        sweep = await anyio.to_thread.run_sync(emulator.create_sweep, config)
        proxies, members = {}, {}
        for name in NODES:
            proxies[name] = await stack.enter_async_context(FaultProxy(redis.socket).serve())
            url = proxies[name].url if leases else "off"
            members[name] = node = Node(
                name,
                emulator,
                directory / "n",
                sweep,
                tuple(daemon_flags(url, settings)),
                {"RECORDS": str(records)},
            )
            stack.callback(node.end)
        for node in members.values():
            await anyio.to_thread.run_sync(node.start)
        yield Daemons(redis, emulator, settings, members, proxies, records)


def daemon_flags(url: str, settings: LeaseSettings) -> Iterator[str]:
    """Options of one daemon."""
    yield from ("--redis-url", url, "--slots", str(SLOTS), "--until-done")
    names = ("ttl", "renew", "grace", "handoff", "race_window", "timeout", "stop_budget")
    for name in names:
        key = f"{name}_seconds"
        yield from ("--set", f"redis.{key}={getattr(settings, key):g}")
    yield from ("--set", "sweep.poll_seconds=1")


async def finish(place: Daemons) -> list[str]:
    """Let everything end; the nodes that did not."""
    (place.records.parent / "release").touch()
    with anyio.move_on_after(DRAIN_SECONDS):
        for name in NODES:
            while name in place.living:  # noqa: ASYNC110 - it is told to be done
                await anyio.sleep(0.5)
    left = place.living
    for name in NODES:
        process = place.members[name].process
        if process is not None and name not in left:
            place.codes.append((name, process.returncode))
    return left


# --- the sum --------------------------------------------------------------------------------------
def sum_up(place: Daemons, rows: list[Row], left: list[str]) -> Result:
    """What the records, the emulator and the daemons' own histories say."""
    stays = read_stays(place.records)
    runs = place.emulator.state()["runs"]
    history = place.emulator.history()
    views = [view for node in place.members.values() for view in node.history()]
    lost = [(rows[-1].ended, words) for words in unaccounted(runs, views)]
    lapses = [e for e in history if e.get("cause") == "reservation lapsed"]
    facts = {
        "runs": len(runs),
        **_count(run["state"] for run in runs.values()),
        "handed out": sum(e["what"] == "command" for e in history),
        "duplicates": sum(bool(e.get("duplicate")) for e in history),
        "reservations lapsed": len(lapses),
        "seconds played": round(rows[-1].ended - rows[0].began),
        **{f"outcome {name}": n for name, n in _count(v["outcome"] for v in views).items()},
    }
    result = judge(
        rows, stays, lost, facts,
        slots=place.slots, settings=place.settings, slack_seconds=place.slack_seconds,
    )  # fmt: skip
    result.broken += [f"node {name} did not end" for name in left]
    result.broken += [f"node {n} exited with {c}" for n, c in place.codes if c not in {0, 75}]
    result.broken += marks(stays, history)
    for node in place.members.values():
        result.broken += [f"left behind by {node.name}: {c}" for c in node.processes().values()]
    return result


def _count(words: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def unaccounted(
    runs: Mapping[str, Mapping[str, Any]], views: list[dict[str, Any]]
) -> Iterator[str]:
    """Runs that neither ended on the server nor have an end that a daemon has recorded."""
    ordered = sorted(views, key=lambda view: view["ended"])
    recorded = {view["run_id"]: view["outcome"] for view in ordered}
    stays = _count(view["run_id"] for view in views)
    for run_id, run in runs.items():
        said = recorded.get(run_id)
        if run["state"] in ENDED or run["state"] == "abandoned" or stays.get(run_id, 0) > ATTEMPTS:
            continue
        if said is None or said in COME_BACK:
            yield f"run {run_id} is {run['state']} on the server, the last word here is {said}"


def marks(stays: list[Stay], history: list[dict[str, Any]]) -> Iterator[str]:
    """Ends that a killed copy with the smaller fence has reported, as far as they are not the
    other copy's own."""
    for pair in overlaps(stays):
        old, new = sorted((pair.first, pair.second), key=lambda stay: stay.fence)
        if old.state != "alive":
            continue  # it came to its end while nobody could tell it of the other
        until = new.ended - (0.0 if new.state == "alive" else FINISHING_SECONDS)
        for event in history:
            ours = event["what"] == "run_state" and event["run"] == old.run_id
            near = old.ended - 0.1 <= event["t"] <= min(until, old.ended + 10)
            if ours and near and str(event["cause"]).startswith("exit code"):
                yield f"the fenced copy of {old.run_id} left {event['state']} on the server"
