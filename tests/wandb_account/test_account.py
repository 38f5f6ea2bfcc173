"""Our own questions, asked of the emulator, and the words for what goes wrong."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import ClientSession, web

from coordinator.core.model import SweepPath, SweepState
from coordinator.errors import CoordinatorError, PeerError, UserError
from coordinator.wandb_account import Account, Login
from coordinator.wandb_account.questions import (
    KeyRefusedError,
    NoSuchSweepError,
    UpstreamUnreachableError,
)
from tests.support.emulator import API_KEY, Emulator, start_emulator

pytestmark = pytest.mark.anyio

GRID = {"program": "t.py", "method": "grid", "parameters": {"n": {"values": [1, 2]}}}

BEGIN = """mutation UpsertBucket($name: String, $host: String, $sweep: String, $project: String) {
  upsertBucket(input: {name: $name, modelName: $project, host: $host, sweep: $sweep}) {
    bucket { id name } inserted } }"""
"""What `wandb.init()` sends."""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One that lets in one key only."""
    found = start_emulator(tmp_path_factory.mktemp("emulator"), "--api-key", API_KEY)
    yield found
    found.stop()


@pytest.fixture
def sweep(emulator: Emulator) -> SweepPath:
    """A running sweep of two runs."""
    return SweepPath.parse(emulator.create_sweep(GRID, project=f"p{uuid.uuid4().hex[:8]}"))


@asynccontextmanager
async def account(url: str, key: str = API_KEY) -> AsyncIterator[Account]:
    async with ClientSession() as session:
        yield Account(Login(url, key, key_from_environment=True), session)


@asynccontextmanager
async def server(status: int, body: bytes) -> AsyncIterator[str]:
    """A W&B server that always answers the same; its address."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_post("/graphql", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def one_line(error: CoordinatorError) -> str:
    assert "\n" not in str(error)
    assert API_KEY not in str(error)
    return str(error)


# --- answers --------------------------------------------------------------------------------------
async def test_the_state_of_a_sweep_is_that_of_the_server(
    emulator: Emulator, sweep: SweepPath
) -> None:
    async with account(emulator.url) as asked:
        assert await asked.sweep_state(sweep) is SweepState.RUNNING
        for state in ("PAUSED", "FINISHED", "RUNNING", "CANCELED"):
            emulator.set_sweep_state(str(sweep), state)
            assert await asked.sweep_state(sweep) is SweepState(state)


async def test_the_state_of_a_run_is_that_of_the_server_once_the_run_has_begun(
    emulator: Emulator, sweep: SweepPath
) -> None:
    [command] = emulator.heartbeat(emulator.create_agent(str(sweep)))
    run_id = command["run_id"]
    begun = {"name": run_id, "project": sweep.project, "sweep": sweep.name, "host": "node"}
    async with account(emulator.url) as asked:
        assert await asked.run_state(sweep, run_id) is None, "handed out, not begun"
        assert emulator.graphql(BEGIN, begun).status == 200
        assert await asked.run_state(sweep, run_id) == "RUNNING"
        stream = f"{sweep.entity}/{sweep.project}/{run_id}"
        emulator.file_stream(stream, complete=True, exitcode=0)
        assert await asked.run_state(sweep, run_id) == "FINISHED"


async def test_a_run_that_the_server_does_not_know_has_no_state(
    emulator: Emulator, sweep: SweepPath
) -> None:
    async with account(emulator.url) as asked:
        assert await asked.run_state(sweep, "absent") is None
        nowhere = replace(sweep, project="absent")
        assert await asked.run_state(nowhere, "absent") is None


async def test_the_emulator_knows_every_question_of_ours(
    emulator: Emulator, sweep: SweepPath
) -> None:
    async with account(emulator.url) as asked:
        await asked.sweep_state(sweep)
        await asked.run_state(sweep, "absent")
    assert emulator.unknown() == []


# --- refusals -------------------------------------------------------------------------------------
async def test_a_refused_key_is_a_user_error(emulator: Emulator, sweep: SweepPath) -> None:
    async with account(emulator.url, "f" * 40) as asked:
        with pytest.raises(KeyRefusedError) as caught:
            await asked.sweep_state(sweep)
    assert isinstance(caught.value, UserError)
    assert "check WANDB_API_KEY" in one_line(caught.value)
    assert "f" * 40 not in str(caught.value)


@pytest.mark.parametrize("part", ["entity", "project", "name"])
async def test_an_unknown_sweep_is_a_user_error(
    part: str, emulator: Emulator, sweep: SweepPath
) -> None:
    absent = replace(sweep, **{part: "absent"})
    async with account(emulator.url) as asked:
        with pytest.raises(NoSuchSweepError) as caught:
            await asked.sweep_state(absent)
    assert one_line(caught.value).startswith(f"--sweep {absent}: ")


@pytest.mark.parametrize("status", [401, 403])
async def test_the_servers_own_words_for_a_refused_key_are_shown(status: int) -> None:
    words = b'{"errors": [{"message": "key\\nrevoked"}]}'
    async with server(status, words) as url, account(url) as asked:
        with pytest.raises(KeyRefusedError, match="key revoked") as caught:
            await asked.sweep_state(SweepPath("e", "p", "s"))
    one_line(caught.value)


# --- a server that cannot be asked ----------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b'{"error": "oops"}', "HTTP 500 oops"),
        (429, b"{}", "HTTP 429"),
        (502, b"<html>\n<h1>Bad gateway</h1></html>", "HTTP 502 <html> <h1>Bad gateway</h1>"),
        (400, b"", "HTTP 400"),
    ],
)
async def test_a_server_in_trouble_may_be_better_later(
    status: int, body: bytes, words: str
) -> None:
    async with server(status, body) as url, account(url) as asked:
        with pytest.raises(UpstreamUnreachableError) as caught:
            await asked.sweep_state(SweepPath("e", "p", "s"))
        with pytest.raises(UpstreamUnreachableError):
            await asked.run_state(SweepPath("e", "p", "s"), "r")
    assert isinstance(caught.value, PeerError)
    assert words in one_line(caught.value)


@pytest.mark.parametrize("body", [b"", b"<html>a login page</html>", b"[]", b'{"data": null}'])
async def test_an_answer_that_is_not_of_a_wandb_server_means_no_such_sweep(body: bytes) -> None:
    async with server(200, body) as url, account(url) as asked:
        with pytest.raises(NoSuchSweepError):
            await asked.sweep_state(SweepPath("e", "p", "s"))
        assert await asked.run_state(SweepPath("e", "p", "s"), "r") is None


async def test_a_server_that_is_not_there_is_named_with_the_systems_reason() -> None:
    async with server(200, b"") as url:
        pass
    async with account(url) as asked:
        with pytest.raises(UpstreamUnreachableError) as caught:
            await asked.sweep_state(SweepPath("e", "p", "s"))
    line = one_line(caught.value)
    assert line.startswith(f"{url} cannot be reached: Connect")
    assert "WANDB_BASE_URL" in line


async def test_a_host_that_does_not_exist_is_reported_in_one_line() -> None:
    async with account("http://no-such-host.invalid") as asked:
        with pytest.raises(UpstreamUnreachableError) as caught:
            await asked.sweep_state(SweepPath("e", "p", "s"))
    assert one_line(caught.value).startswith("http://no-such-host.invalid cannot be reached: ")
