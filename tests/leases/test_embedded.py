"""The embedded server: real processes, real sockets."""

import os
import signal
import stat
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
import psutil
import pytest
from redis.exceptions import RedisError

from coordinator.core.model import SweepPath
from coordinator.errors import UserError
from coordinator.leases.connection import open_client
from coordinator.redis_server import binary, embedded, embedded_redis, find_server, leash
from tests.leases.nodes import claim, node, until

pytestmark = pytest.mark.anyio

DAEMON = """
import sys, anyio
from pathlib import Path
from coordinator.redis_server import embedded_redis
async def main():
    async with embedded_redis(Path(sys.argv[1])) as url:
        print("READY", url, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


async def ask(url: str, *command: str) -> object:
    client = open_client(url, timeout_seconds=10, connections=1)
    try:
        return await client.execute_command(*command)
    finally:
        await client.aclose()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def server_pid(url: str) -> int:
    client = open_client(url, timeout_seconds=10, connections=1)
    try:
        return int((await client.info("server"))["process_id"])
    finally:
        await client.aclose()


@pytest.fixture(params=["bundled", "redis-server"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of server that a user may have."""
    if request.param == "redis-server":
        monkeypatch.setattr(binary, "_bundled", lambda: None)
    return str(request.param)


@pytest.mark.usefixtures("program")
async def test_it_serves_leases_from_a_private_socket_only(
    tmp_path: Path, sweep: SweepPath
) -> None:
    async with embedded_redis(tmp_path) as url:
        socket = Path(url.removeprefix("unix://"))
        assert mode(socket) == 0o600
        assert mode(socket.parent) == 0o700
        process = psutil.Process(await server_pid(url))
        assert [c for c in process.net_connections() if c.status == "LISTEN"] == []
        assert os.getsid(process.pid) == process.pid, "a session of its own"
        assert "WANDB_API_KEY" not in process.environ()
        async with node(url, sweep, tmp_path) as a:
            await a.held(claim("r1"))
    assert not process.is_running()
    assert socket not in list(socket.parent.iterdir())


@pytest.mark.usefixtures("program")
async def test_its_data_survive_a_stop_and_a_kill(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path) as url:
        await ask(url, "SET", "one", "1")
    async with embedded_redis(tmp_path) as url:
        assert await ask(url, "GET", "one") == "1"
        await ask(url, "SET", "two", "2")
        os.kill(await server_pid(url), signal.SIGKILL)
    async with embedded_redis(tmp_path) as url:
        assert await ask(url, "GET", "two") == "2"


async def test_a_crashed_server_is_restarted_with_its_data(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path) as url:
        await ask(url, "SET", "one", "1")
        first = await server_pid(url)
        os.kill(first, signal.SIGKILL)
        with anyio.fail_after(20):
            while True:
                try:
                    second = await server_pid(url)
                    break
                except (RedisError, OSError):
                    await anyio.sleep(0.02)
        assert second != first
        assert await ask(url, "GET", "one") == "1"


async def test_it_goes_with_a_daemon_that_was_killed_even_when_frozen(tmp_path: Path) -> None:
    daemon = await anyio.open_process(
        [sys.executable, "-c", DAEMON, str(tmp_path)], stdin=DEVNULL, stderr=DEVNULL
    )
    assert daemon.stdout is not None
    output = b""
    with anyio.fail_after(30):
        while b"READY" not in output:
            output += await daemon.stdout.receive()
    url = f"unix://{tmp_path}/redis/redis.sock"
    server = psutil.Process(await server_pid(url))
    os.kill(server.pid, signal.SIGSTOP)
    daemon.kill()
    await daemon.wait()
    await daemon.aclose()
    await until(lambda: not _lives(server))
    async with embedded_redis(tmp_path) as again:
        assert await ask(again, "PING") is True


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_a_ctrl_c_at_the_daemons_terminal_does_not_reach_it(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path) as url:
        assert os.getpgid(await server_pid(url)) != os.getpgid(0)


async def test_a_second_server_in_the_same_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.1)
    async with embedded_redis(tmp_path):
        with pytest.raises(UserError, match="another coordinatord"):
            async with embedded_redis(tmp_path):
                pytest.fail("two servers in one directory")


async def test_the_server_itself_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.1)
    async with embedded_redis(tmp_path) as url:
        handles = psutil.Process(await server_pid(url)).open_files()
        names = {Path(handle.path).name for handle in handles}
        assert "redis.lock" in names


async def test_what_a_dead_server_left_is_cleared(tmp_path: Path) -> None:
    directory = tmp_path / "redis"
    directory.mkdir(mode=0o755)
    (directory / "redis.sock").write_text("not even a socket")
    async with embedded_redis(tmp_path) as url:
        assert await ask(url, "PING") is True
        assert mode(directory) == 0o700


async def test_a_path_too_long_for_a_socket_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--state-dir.*107"):
        async with embedded_redis(tmp_path / ("x" * 100)):
            pytest.fail("cannot listen there")


async def test_a_directory_with_spaces_and_quotes_works(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path / 'a "b" c') as url:
        assert await ask(url, "PING") is True


async def test_damaged_data_are_reported_with_the_servers_own_words(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path) as url:
        await ask(url, "SET", "one", "1")
    (part,) = (tmp_path / "redis" / "appendonlydir").glob("*.incr.aof")
    part.write_bytes(b"*3\r\n$3\r\nbroken" + part.read_bytes())
    with pytest.raises(UserError, match=r"does not start.*Bad file format"):
        async with embedded_redis(tmp_path):
            pytest.fail("started on damaged data")


async def test_without_any_server_program_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="embedded"):
        find_server()


async def test_the_leash_refuses_when_the_parent_died_before_it_was_put_on(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-I", "-S", str(leash.__file__), "1", "/bin/true"]
    if os.getppid() == 1 and os.getpid() == 1:
        pytest.skip("the test itself is process 1")
    result = await anyio.run_process(command, check=False, stdout=PIPE, cwd=tmp_path)
    assert result.returncode == 3
