"""The agent server with the real wandb: what it forks is an agent like any other."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from coordinator.process import tree
from coordinator.process.forkserver import (
    UNKNOWN_EXIT_CODE,
    AgentServer,
    Forked,
    ServerGoneError,
    StaleError,
)
from coordinator.process.spawn import Child, spawn
from tests.process.actors import SLEEPER
from tests.support.emulator import wait_until
from tests.support.fake_wandb import fake_wandb

pytestmark = pytest.mark.anyio

SECONDS = 60.0
ENV = {"PATH": os.environ["PATH"], "WANDB_ERROR_REPORTING": "false"}
REAL = Path(sys.executable).with_name("wandb")


@asynccontextmanager
async def server(script: Path, folder: Path, *flags: str) -> AsyncIterator[AgentServer]:
    tree.become_subreaper()  # as the daemon does
    running = await AgentServer.start(
        [sys.executable, *flags],
        str(script),
        env={**ENV, "PYTHONPATH": str(script.parent)},
        cwd=folder,
        log=folder / "log",
    )
    try:
        yield running
    finally:
        await running.close()


async def ended(child: Child) -> int:
    with anyio.fail_after(SECONDS):
        return await child.wait()


async def until(what: str, probe: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(wait_until, what, probe, SECONDS)


async def test_the_real_wandb_is_forked_with_its_own_command_line(tmp_path: Path) -> None:
    output = tmp_path / "out"
    async with server(REAL, tmp_path) as running:
        assert running.eager
        argv = ["agent", "--help"]
        child = await running.fork(argv, env=ENV, cwd=tmp_path, output=output)
        assert await ended(child) == 0
    assert "--forward-signals" in output.read_text()


@pytest.mark.parametrize("safe_path", [False, True])
async def test_a_forked_agent_sees_what_a_started_one_sees(safe_path: bool, tmp_path: Path) -> None:
    script, flags = fake_wandb(tmp_path / "site"), ["-P"] if safe_path else []
    env = {**ENV, "TOKEN": "\udcff and blanks", "PYTHONPATH": str(tmp_path / "site")}
    seen = []
    for way in ("fork", "exec"):
        output = tmp_path / way
        async with server(script, tmp_path / "site", *flags) as running:
            if way == "fork":
                child = await running.fork(["show"], env=env, cwd=tmp_path, output=output)
            else:
                end = "\nimport sys\nsys.exit(cli())\n"
                (tmp_path / "site" / "full").write_text(script.read_text() + end)
                command = [sys.executable, *flags, str(tmp_path / "site" / "full"), "show"]
                child = await spawn(command, env=env, cwd=tmp_path, output=output)
            assert await ended(child) == 0, output.read_text()
            told = json.loads(output.read_text())
            assert told.pop("pid") == told.pop("sid") == child.pid
            assert told.pop("ppid") == os.getpid()
            assert told["argv"].pop(0).startswith(str(tmp_path / "site"))
            told["env"].pop("LC_CTYPE", None)  # PEP 538: of CPython, in the C locale
            seen.append(told)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("words", "code"), [(["exit", "0"], 0), (["exit", "3"], 3), (["kill", "9"], -9)]
)
async def test_its_true_exit_code_comes_back(words: list[str], code: int, tmp_path: Path) -> None:
    script = fake_wandb(tmp_path / "site")
    async with server(script, tmp_path) as running:
        child = await running.fork(words, env=ENV, cwd=tmp_path, output=tmp_path / "out")
        assert await ended(child) == code
        assert child.exit_code == code


async def test_without_pidfd_open_the_exit_code_comes_back_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.process.forkserver._pidfd", lambda _pid: None)
    async with server(fake_wandb(tmp_path / "site"), tmp_path) as running:
        child = await running.fork(["exit", "3"], env=ENV, cwd=tmp_path, output=tmp_path / "out")
        assert await ended(child) == 3


async def test_a_status_that_somebody_else_has_taken_ends_the_wait(tmp_path: Path) -> None:
    async with server(fake_wandb(tmp_path / "site"), tmp_path) as running:
        child = await running.fork(["exit", "0"], env=ENV, cwd=tmp_path, output=tmp_path / "out")
        await anyio.to_thread.run_sync(os.waitpid, child.pid, 0)
        assert await ended(child) == UNKNOWN_EXIT_CODE


async def test_an_agent_shows_its_own_command_line_and_name(tmp_path: Path) -> None:
    script = fake_wandb(tmp_path / "site")
    async with server(script, tmp_path) as running:
        flag = str(tmp_path / "sleeps")
        child = await running.fork(["sleep", flag], env=ENV, cwd=tmp_path, output=tmp_path / "out")
        await until("it sleeps", Path(flag).exists)
        process = psutil.Process(child.pid)
        shown = " ".join(process.cmdline()).rstrip()
        assert shown == f"{sys.executable} {script} sleep {flag}"
        assert process.name() == "wandb"
        await child.kill_session()
        assert await ended(child) == -signal.SIGKILL


async def test_agents_outlive_their_server(tmp_path: Path) -> None:
    async with server(fake_wandb(tmp_path / "site"), tmp_path) as running:
        flag = str(tmp_path / "sleeps")
        child = await running.fork(["sleep", flag], env=ENV, cwd=tmp_path, output=tmp_path / "out")
        await until("it sleeps", Path(flag).exists)
        os.kill(running.pid, signal.SIGKILL)
        with pytest.raises(ServerGoneError):
            await running.fork(["exit", "0"], env=ENV, cwd=tmp_path, output=tmp_path / "out")
        assert child.exit_code is None
        assert tree.state_of(child.pid) == "S"
        await child.kill_session()
        assert await ended(child) == -signal.SIGKILL


DAEMON = """
import json, os, subprocess, sys, time
from coordinator.process import tree
tree.become_subreaper()
server = subprocess.Popen([sys.executable, *sys.argv[1:3], str(os.getpid()), "-" * 200],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
server.stdout.readline()
request = {"argv": ["sleep", sys.argv[3]], "output": sys.argv[4]}
request |= {"cwd": "/", "env": dict(os.environ)}
server.stdin.write(json.dumps(request).encode() + b"\\n")
server.stdin.flush()
print(json.loads(server.stdout.readline())["pid"], server.pid, flush=True)
time.sleep(600)
"""


async def test_agents_and_server_end_with_the_daemon(tmp_path: Path) -> None:
    script, flag = fake_wandb(tmp_path / "site"), tmp_path / "sleeps"
    root = Path(__file__).parents[2]
    server_file = root / "coordinator" / "agent_server.py"
    words = ["-c", DAEMON, str(server_file), str(script), str(flag), str(tmp_path / "out")]
    env = {**ENV, "PYTHONPATH": str(root)}
    async with await anyio.open_process([sys.executable, *words], env=env) as daemon:
        assert daemon.stdout is not None
        with anyio.fail_after(SECONDS):
            pids = [int(word) for word in (await daemon.stdout.receive()).split()]
        await until("the agent sleeps", flag.exists)
        daemon.kill()
        await until("both have ended", lambda: all(tree.state_of(pid) in "ZX" for pid in pids))


@pytest.mark.parametrize(
    ("init", "reason"),
    [
        ("raise SystemExit('broken')", "wandb cannot be imported: SystemExit: broken"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import os; os._exit(3)", "the agent server has ended"),
    ],
)
async def test_a_wandb_that_cannot_be_imported_is_refused(
    init: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ServerGoneError, match=reason):
        async with server(fake_wandb(tmp_path / "site", init), tmp_path):
            pass


async def test_a_wandb_that_starts_a_thread_is_refused(tmp_path: Path) -> None:
    init = "import threading, time; threading.Thread(target=time.sleep, args=[600]).start()"
    async with server(fake_wandb(tmp_path / "site", init), tmp_path) as running:
        with pytest.raises(ServerGoneError, match=r"wandb 9\.9 starts 1 threads when imported"):
            await running.fork(["exit", "0"], env=ENV, cwd=tmp_path, output=tmp_path / "out")


async def test_what_wandb_prints_while_it_is_imported_is_no_answer(tmp_path: Path) -> None:
    async with server(fake_wandb(tmp_path / "site", "print('hello')"), tmp_path) as running:
        assert running.version == "9.9"


async def test_an_environment_that_writes_to_stdout_at_its_start_is_refused(tmp_path: Path) -> None:
    script = fake_wandb(tmp_path / "site")
    (tmp_path / "site" / "sitecustomize.py").write_text("import os; os.write(1, b'hello\\n')")
    with pytest.raises(ServerGoneError, match="the agent server said b'hello'"):
        async with server(script, tmp_path):
            pass


@pytest.mark.parametrize("what", ["change", "delete"])
async def test_a_wandb_that_was_replaced_is_noticed(what: str, tmp_path: Path) -> None:
    async with server(fake_wandb(tmp_path / "site"), tmp_path) as running:
        file = tmp_path / "site" / "wandb" / "wandb_agent.py"
        if what == "change":
            file.write_text("new = True\n")
        else:
            file.unlink()
        with pytest.raises(StaleError):
            await running.fork(["exit", "0"], env=ENV, cwd=tmp_path, output=tmp_path / "out")


async def test_a_server_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.process.forkserver.FORK_SECONDS", 0.2)
    async with server(fake_wandb(tmp_path / "site"), tmp_path) as running:
        os.kill(running.pid, signal.SIGSTOP)
        with pytest.raises(ServerGoneError, match="did not answer"):
            await running.fork(["exit", "0"], env=ENV, cwd=tmp_path, output=tmp_path / "out")


async def test_a_directory_that_is_gone_is_told_in_the_agents_own_output(tmp_path: Path) -> None:
    async with server(fake_wandb(tmp_path / "site"), tmp_path) as running:
        child = await running.fork(
            ["exit", "0"], env=ENV, cwd=tmp_path / "gone", output=tmp_path / "out"
        )
        assert await ended(child) == 127
    assert (tmp_path / "out").read_text() == f"{tmp_path / 'gone'}: No such file or directory\n"


async def test_an_output_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    async with server(fake_wandb(tmp_path / "site"), tmp_path) as running:
        (tmp_path / "out").mkdir()
        with pytest.raises(IsADirectoryError):
            await running.fork(["exit", "0"], env=ENV, cwd=tmp_path, output=tmp_path / "out")


async def test_a_started_child_is_never_eager_and_a_forked_one_may_be(tmp_path: Path) -> None:
    child = await spawn(SLEEPER, env=ENV, cwd=tmp_path, output=tmp_path / "out")
    assert not child.eager
    assert Forked(child.pid, eager=True).eager
    await child.kill_session()
    await ended(child)
