"""Is the sweep over, and may it go on: the emulator, a real Redis, the real `wandb sweep`."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession

from coordinator.core.model import SweepPath, SweepState
from coordinator.core.sweep import SweepVerb
from coordinator.errors import PeerError
from coordinator.supervisor import sweep as watch_module
from coordinator.supervisor.level import Level
from coordinator.supervisor.revival import MOST_FAILURES, Revival, Verdict
from coordinator.supervisor.sweep import DELETED_AFTER_ASKS, SweepWatch
from coordinator.wandb_account import Account, Login
from coordinator.wandb_account.sweep_command import SweepCommand, SweepCommandError
from tests.leases.nodes import node
from tests.support.emulator import API_KEY, Emulator, start_emulator
from tests.support.redis import redis_server

pytestmark = pytest.mark.anyio
WANDB = str(Path(sys.executable).with_name("wandb"))
BEGIN = """mutation UpsertBucket($name: String, $host: String, $sweep: String, $project: String) {
  upsertBucket(input: {name: $name, modelName: $project, host: $host, sweep: $sweep}) {
    bucket { id name } inserted } }"""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Its sweeps finish with the hand-out of their last configuration."""
    found = start_emulator(tmp_path_factory.mktemp("emulator"), "--early-finish")
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def no_faults(emulator: Emulator) -> None:
    emulator.faults(clear=True)


def preempted(emulator: Emulator, configurations: int = 1) -> SweepPath:
    """A sweep, one run of which was preempted and is in its queue."""
    values = {"n": {"values": list(range(configurations))}}
    path = emulator.create_sweep({"program": "t.py", "method": "grid", "parameters": values})
    sweep = SweepPath.parse(path)
    (command,) = emulator.heartbeat(emulator.create_agent(path))
    run: str = command["run_id"]
    emulator.graphql(BEGIN, {"name": run, "host": "h", "sweep": sweep.name,
                             "project": sweep.project})  # fmt: skip
    where = f"{sweep.entity}/{sweep.project}/{run}"
    emulator.file_stream(where, preempting=True)
    emulator.file_stream(where, complete=True, exitcode=1)
    assert emulator.run(run)["state"] == "preempted"
    return sweep


def command_of(emulator: Emulator, sweep: SweepPath, tmp_path: Path) -> SweepCommand:
    return SweepCommand(WANDB, sweep, emulator.environment(tmp_path / "home"), tmp_path)


@asynccontextmanager
async def account_of(emulator: Emulator) -> AsyncIterator[Account]:
    async with ClientSession() as session:
        yield Account(Login(emulator.url, API_KEY, key_from_environment=True), session)


@asynccontextmanager
async def revivals(
    emulator: Emulator, sweep: SweepPath, tmp_path: Path, *names: str, enabled: bool = True
) -> AsyncIterator[list[Revival]]:
    """Nodes that share a Redis, as far as the sweep's state goes."""
    command = command_of(emulator, sweep, tmp_path)
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(tmp_path))
        account = await stack.enter_async_context(account_of(emulator))
        nodes = [await stack.enter_async_context(node(redis.url, sweep, tmp_path, name))
                 for name in names]  # fmt: skip
        yield [Revival(account, sweep, one.keeper, command, enabled=enabled) for one in nodes]


def resumed(emulator: Emulator, sweep: SweepPath) -> list[dict[str, Any]]:
    return emulator.events("sweep_state", sweep=str(sweep), state="RUNNING")


async def test_two_nodes_resume_an_exhausted_sweep_once(emulator: Emulator, tmp_path: Path) -> None:
    sweep = preempted(emulator)
    async with revivals(emulator, sweep, tmp_path, "a", "b") as both:
        verdicts: list[Verdict] = []

        async def consider(revival: Revival) -> None:
            while (verdict := await revival.consider()) is Verdict.LATER:  # noqa: ASYNC110
                await anyio.sleep(0.05)
            verdicts.append(verdict)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for revival in both:
                    group.start_soon(consider, revival)

        assert verdicts == [Verdict.REVIVED, Verdict.REVIVED]
        assert [event["cause"] for event in resumed(emulator, sweep)] == ["user"]
        emulator.set_sweep_state(str(sweep), "FINISHED")  # a person, before the run went on
        assert [await revival.consider() for revival in both] == [Verdict.LEFT] * 2
        assert len(resumed(emulator, sweep)) == 1


async def test_a_sweep_with_configurations_left_or_without_being_told_is_left_alone(
    emulator: Emulator, tmp_path: Path
) -> None:
    stopped = preempted(emulator, configurations=2)
    emulator.set_sweep_state(str(stopped), "FINISHED")
    async with revivals(emulator, stopped, tmp_path, "a") as [revival]:
        assert await revival.consider() is Verdict.LEFT
    exhausted = preempted(emulator)
    async with revivals(emulator, exhausted, tmp_path, "a", enabled=False) as [revival]:
        assert await revival.consider() is Verdict.LEFT
    assert resumed(emulator, stopped) == resumed(emulator, exhausted) == []


async def test_a_server_that_never_tells_its_queue_leaves_the_sweep_over(
    emulator: Emulator, tmp_path: Path
) -> None:
    sweep = preempted(emulator)
    emulator.faults({"kind": "http", "op": "SweepWork", "status": 400})
    async with revivals(emulator, sweep, tmp_path, "a") as [revival]:
        for _ in range(MOST_FAILURES - 1):
            with pytest.raises(PeerError):
                await revival.consider()
        assert await revival.consider() is Verdict.LEFT


async def test_wandb_says_why_it_did_not_do_it(emulator: Emulator, tmp_path: Path) -> None:
    sweep = preempted(emulator)
    command = command_of(emulator, sweep, tmp_path)
    with pytest.raises(SweepCommandError, match=r"--stop .* failed: .*Sweep already finished"):
        await command.run(SweepVerb.STOP)
    missing = SweepCommand(str(tmp_path / "absent"), sweep, {}, tmp_path)
    with pytest.raises(SweepCommandError, match="No such file"):
        await missing.run(SweepVerb.STOP)


async def looks(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> SweepWatch:
    """A watch after one doubt, while the server says 404 so often."""
    monkeypatch.setattr(watch_module, "RETRY_SECONDS", 0.01)
    path = emulator.create_sweep({"program": "t.py", "method": "grid",
                                  "parameters": {"n": {"values": [1]}}})  # fmt: skip
    sweep = SweepPath.parse(path)
    emulator.faults({"kind": "http", "op": "SweepState", "status": 404, "count": refusals})
    async with (
        revivals(emulator, sweep, tmp_path, "a") as [revival],
        account_of(emulator) as account,
        anyio.create_task_group() as group,
    ):
        changed = Level()
        watch = SweepWatch(account, sweep, SweepState.RUNNING, changed, revival)
        watch.ended()
        group.start_soon(watch.run)
        with anyio.fail_after(60):
            while watch.undecided:
                await changed.wait()
        group.cancel_scope.cancel()
    return watch


async def test_a_few_404_in_a_row_are_no_deletion(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = await looks(emulator, tmp_path, monkeypatch, DELETED_AFTER_ASKS - 1)
    assert (watch.deleted, watch.over, watch.state) == (False, False, SweepState.RUNNING)


async def test_a_sweep_that_stays_unknown_was_deleted(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = await looks(emulator, tmp_path, monkeypatch, DELETED_AFTER_ASKS)
    assert (watch.deleted, watch.over, watch.closed) == (True, True, True)
    assert "deleted" in watch.trouble
