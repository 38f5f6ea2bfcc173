"""`leases` and `nodes`: coordinatorctl, a real control socket, two keepers, one real Redis."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

from coordinator.control import LogLine, serve
from coordinator.core.model import Outcome, SweepPath
from coordinator.core.protocol import Answer, LeaseRequest, RequestUnion
from coordinator.leases import Leases, NodeFacts, NoLeases
from coordinator.leases.keys import Keys
from coordinator.supervisor.lease_commands import LeaseCommands
from coordinator.telemetry import Telemetry
from tests.control.daemon import Result, ctl
from tests.leases.nodes import FAST, Node, claim, node, resume, until
from tests.support.redis import RedisServer, redis_server

pytestmark = pytest.mark.anyio

CALM = replace(FAST, ttl_seconds=6.0, renew_seconds=0.5, timeout_seconds=2.0)
"""A loaded machine does not make a holder look silent for three seconds."""
SWEEP = SweepPath("entity", "project", "abc123")


async def no_logs(_target: str | None, _count: int, _follow: bool) -> AsyncIterator[LogLine]:
    """Nobody asks for them here."""
    for line in list[LogLine]():
        yield line


@asynccontextmanager
async def control(socket: Path, leases: Leases, telemetry: Telemetry) -> AsyncIterator[None]:
    """The control server of a node with `leases`."""
    commands = LeaseCommands(leases)

    async def handle(request: RequestUnion) -> Answer:
        assert isinstance(request, LeaseRequest)
        return await commands.handle(request)

    async with anyio.create_task_group() as tasks:
        await tasks.start(serve, socket, handle, telemetry, no_logs)
        yield
        tasks.cancel_scope.cancel()


@dataclass(frozen=True)
class Pair:
    """Node a holds leases; b is the node that is asked."""

    a: Node
    b: Node
    socket: Path
    redis: RedisServer

    async def ctl(self, *words: str) -> Result:
        return await ctl("--socket", str(self.socket), *words)


@pytest.fixture
async def pair(place: Path, telemetry: Telemetry) -> AsyncIterator[Pair]:
    socket = place / "control.sock"
    async with (
        redis_server(place) as redis,
        node(redis.url, SWEEP, place, "node-a", CALM) as a,
        node(redis.url, SWEEP, place, "node-b", CALM) as b,
        control(socket, b.keeper, telemetry),
    ):
        yield Pair(a, b, socket, redis)


# --- looking --------------------------------------------------------------------------------------
async def test_ls_on_one_node_shows_the_lease_of_the_other(pair: Pair) -> None:
    lease = await pair.a.held(claim("r1", slot=3))
    (row,) = (await pair.ctl("--json", "leases", "ls")).json
    assert (row["run_id"], row["owner"], row["slot"]) == ("r1", "node-a", 3)
    assert (row["fence"], row["state"]) == (lease.fence, "held")


async def test_show_has_the_attempts_and_the_last_outcome_of_the_run(pair: Pair) -> None:
    first = await pair.a.held(claim("r1"))
    await pair.a.keeper.release(first.token, Outcome.PREEMPTED)
    lease = await pair.a.held(resume("r1"))
    shown = (await pair.ctl("leases", "show", "r1", "--json")).json
    assert (shown["owner"], shown["fence"], shown["kind"]) == ("node-a", lease.fence, "resume")
    assert (shown["attempts"], shown["outcomes"]) == (1, {"preempted": 1})
    assert (shown["last_outcome"], shown["last_outcome_node"]) == ("preempted", "node-a")
    result = await pair.ctl("leases", "show", "r1")
    for word in ("node-a", str(lease.fence), "1  (1 preempted)", "train.py", '"value": 0.1'):
        assert word in result.out
    assert max(map(len, result.out.splitlines())) <= 80


async def test_nodes_shows_every_node_with_what_it_says_of_itself(pair: Pair) -> None:
    pair.a.keeper.describe(lambda: NodeFacts("1.2.3", "running", 8, 7, 4711))
    await pair.a.held(claim("r1"))
    assert await pair.a.keeper._renewer.round()
    first, second = (await pair.ctl("nodes", "--json")).json
    assert (first["node"], first["alive"], first["leases_held"]) == ("node-a", True, 1)
    assert (first["version"], first["state"], first["sweep"]) == ("1.2.3", "running", str(SWEEP))
    assert (first["slots"], first["busy"], first["pid"]) == (8, 7, 4711)
    assert (second["node"], second["alive"], second["version"]) == ("node-b", True, None)
    result = await pair.ctl("nodes")
    for word in ("node-a", "alive", "7/8", "1.2.3", "4711"):
        assert word in result.out
    assert max(map(len, result.out.splitlines())) <= 80


# --- steal ----------------------------------------------------------------------------------------
async def test_a_steal_with_the_shown_fence_stops_the_holder_once_and_frees_the_run(
    pair: Pair,
) -> None:
    lease = await pair.a.held(claim("r1"))
    result = await pair.ctl("leases", "steal", "r1", "--fence", str(lease.fence))
    assert (result.code, result.err) == (0, "")
    assert "node-a is told" in result.out
    await until(lambda: pair.a.stopped != [])
    (row,) = (await pair.ctl("leases", "ls", "--json")).json
    assert row["state"] == "freed"
    await pair.a.keeper.release(lease.token, Outcome.PREEMPTED)
    assert [found for found, _ in pair.a.stopped] == [lease]
    assert (await pair.b.held(resume("r1"))).fence > lease.fence


@pytest.mark.parametrize("verb", ["steal", "release"])
async def test_with_a_fence_of_the_past_nothing_happens_and_the_present_one_is_named(
    pair: Pair, verb: str
) -> None:
    old = await pair.a.held(claim("r1"))
    await pair.a.keeper.release(old.token, Outcome.PREEMPTED)
    lease = await pair.a.held(resume("r1"))
    result = await pair.ctl("leases", verb, "r1", "--fence", str(old.fence), "--json")
    assert result.code == 6
    assert result.json["exit_code"] == 6
    assert f"fence {lease.fence} now, not {old.fence}" in result.err
    assert await pair.a.keeper._renewer.round()
    assert pair.a.stopped == []
    (row,) = (await pair.ctl("leases", "ls", "--json")).json
    assert (row["fence"], row["state"]) == (lease.fence, "held")


async def test_a_stolen_run_is_kept_for_the_node_that_is_named(pair: Pair) -> None:
    lease = await pair.a.held(claim("r1"))
    result = await pair.ctl("leases", "steal", "r1", "--fence", str(lease.fence), "--to", "node-b")
    assert (result.code, result.err) == (0, "")
    shown = (await pair.ctl("leases", "show", "r1", "--json")).json
    assert shown["handoff_to"] == "node-b"
    assert "node-b" in (await pair.ctl("leases", "show", "r1")).out
    await pair.a.keeper.release(lease.token, Outcome.PREEMPTED)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pair.a.keeper.acquire, resume("r1"))
        await until(lambda: len(pair.a.journalled()) == 1)
        assert (await pair.b.held(resume("r1"))).fence > lease.fence
        tasks.cancel_scope.cancel()


async def test_a_run_is_kept_for_no_node_that_is_unknown_or_silent(pair: Pair) -> None:
    lease = await pair.a.held(claim("r1"))
    steal = ("leases", "steal", "r1", "--fence", str(lease.fence), "--to")
    async with pair.redis.client() as client:
        now, _ = await client.time()
        await client.zadd(Keys(SWEEP).nodes, {"node-x": (now - 3600) * 1000})
    unknown = await pair.ctl(*steal, "node-z")
    assert (unknown.code, "'node-z'" in unknown.err) == (2, True)
    silent = await pair.ctl(*steal, "node-x")
    assert (silent.code, "node-x has been silent" in silent.err) == (6, True)
    assert await pair.a.keeper._renewer.round()
    assert pair.a.stopped == []


# --- release --------------------------------------------------------------------------------------
async def test_a_release_is_refused_while_the_holder_renews_and_points_to_steal(
    pair: Pair,
) -> None:
    lease = await pair.a.held(claim("r1"))
    result = await pair.ctl("leases", "release", "r1", "--fence", str(lease.fence))
    assert result.code == 6
    assert f"leases steal r1 --fence {lease.fence}" in result.err
    forced = await pair.ctl("leases", "release", "r1", "--fence", str(lease.fence), "--force")
    assert (forced.code, forced.err) == (0, "")
    assert (await pair.ctl("leases", "ls", "--json")).json == []
    await until(lambda: pair.a.stopped != [])


async def test_the_lease_of_a_node_that_is_gone_is_released(pair: Pair, tmp_path: Path) -> None:
    async with node(pair.redis.url, SWEEP, tmp_path, "node-c", CALM) as gone:
        lease = await gone.held(claim("r1"))
    line = ("leases", "release", "r1", "--fence", str(lease.fence))
    with anyio.fail_after(60):
        while (result := await pair.ctl(*line)).code == 6:
            assert "was heard of" in result.err
    assert (result.code, result.err) == (0, "")
    assert "any node may claim it" in result.out
    again = await pair.ctl(*line)
    assert (again.code, "free already" in again.err) == (6, True)
    listed = {row["node"]: row["alive"] for row in (await pair.ctl("nodes", "--json")).json}
    assert listed == {"node-a": True, "node-b": True, "node-c": False}
    assert (await pair.b.held(resume("r1"))).fence > lease.fence


# --- what goes wrong ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "line", ["leases show r-x", "leases steal r-x --fence 1", "leases release r-x --fence 1"]
)
async def test_a_run_without_a_lease_is_a_usage_error(pair: Pair, line: str) -> None:
    result = await pair.ctl(*line.split())
    assert result.code == 2
    assert "'r-x'" in result.err


@pytest.mark.parametrize(
    "line",
    [
        "leases",
        "leases show",
        "leases steal r1",
        "leases release r1",
        "leases steal r1 --fence 0",
        "leases steal r1 --fence x",
    ],
)
async def test_an_incomplete_command_line_sends_no_request(line: str) -> None:
    result = await ctl("--socket", "/nowhere", *line.split())
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("line", ["nodes", "leases show r1", "leases steal r1 --fence 1"])
async def test_without_a_daemon_the_exit_code_is_3(place: Path, line: str) -> None:
    assert (await ctl("--socket", str(place / "none.sock"), *line.split())).code == 3


async def test_a_redis_that_does_not_answer_is_a_failure(pair: Pair) -> None:
    await pair.redis.kill()
    for line in ("nodes", "leases ls", "leases show r1", "leases steal r1 --fence 1"):
        result = await pair.ctl(*line.split())
        assert (result.code, "Redis" in result.err) == (1, True), line


async def test_with_leases_off_there_is_nothing_to_take_back(
    place: Path, telemetry: Telemetry
) -> None:
    leases = NoLeases("node-a")
    await leases.acquire(claim("r1"))
    socket = place / "control.sock"
    async with control(socket, leases, telemetry):
        for line in ("nodes", "leases show r1", "leases steal r1 --fence 1"):
            result = await ctl("--socket", str(socket), *line.split())
            assert (result.code, "leases are off" in result.err) == (6, True), line
        listed = await ctl("--socket", str(socket), "leases", "ls", "--json")
        assert [row["run_id"] for row in listed.json] == ["r1"]


@pytest.mark.parametrize(
    "words", [["nodes"], *([["leases", w] for w in ("ls", "show", "steal", "release")])]
)
async def test_help_shows_examples(words: list[str]) -> None:
    result = await ctl(*words, "--help")
    assert result.code == 0
    assert f"Examples:\n    coordinatorctl {' '.join(words)}" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
