"""The socket's file: mode, leftovers, path."""

import os
import socket
import stat
from pathlib import Path

import anyio
import pytest

from coordinator.control import serve
from coordinator.errors import ControlSocketError
from coordinator.telemetry import Telemetry
from tests.control.daemon import Daemon, serving
from tests.control.raw import command

pytestmark = pytest.mark.anyio


async def _problem(path: Path, telemetry: Telemetry, group: str | None = None) -> str:
    """Why a server could not start at `path`."""
    daemon = Daemon(path, telemetry)
    with pytest.raises(ControlSocketError) as caught, anyio.fail_after(10):
        await serve(path, daemon.handle, telemetry, daemon.logs, group)
    return str(caught.value)


async def test_only_the_owner_may_use_it_unless_a_group_is_named(
    place: Path, telemetry: Telemetry
) -> None:
    path = place / "control.sock"
    async with serving(path, telemetry):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with serving(path, telemetry, str(os.getegid())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert path.stat().st_gid == os.getegid()


async def test_an_unknown_group_is_the_configurations_fault(
    place: Path, telemetry: Telemetry
) -> None:
    problem = await _problem(place / "control.sock", telemetry, "no-such-group")
    assert "no-such-group" in problem
    assert "[control] group" in problem
    assert not (place / "control.sock").exists()


async def test_the_socket_is_gone_when_the_server_has_ended(
    place: Path, telemetry: Telemetry
) -> None:
    async with serving(place / "control.sock", telemetry):
        assert (place / "control.sock").exists()
    assert not (place / "control.sock").exists()


async def test_the_socket_of_a_dead_daemon_is_replaced(place: Path, telemetry: Telemetry) -> None:
    path = place / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(path, telemetry):
        assert (await command(path, {"do": "status"})).status == 200


async def test_the_socket_of_a_living_daemon_is_left_alone(daemon: Daemon) -> None:
    assert "another daemon" in await _problem(daemon.socket, daemon.telemetry)
    assert (await command(daemon.socket, {"do": "status"})).status == 200


async def test_a_living_daemon_whose_queue_is_full_is_left_alone(
    place: Path, telemetry: Telemetry
) -> None:
    path = place / "control.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        clients = []
        try:
            while True:
                client = socket.socket(socket.AF_UNIX)
                client.setblocking(False)
                clients.append(client)
                client.connect(str(path))
        except BlockingIOError:
            pass
        assert "another daemon" in await _problem(path, telemetry)
        for client in clients:
            client.close()
    assert path.exists()


async def test_a_file_that_is_not_a_socket_is_never_removed(
    place: Path, telemetry: Telemetry
) -> None:
    path = place / "control.sock"
    path.write_text("precious")
    assert "move or delete it" in await _problem(path, telemetry)
    assert path.read_text() == "precious"


async def test_a_socket_that_replaced_ours_is_not_removed(
    place: Path, telemetry: Telemetry
) -> None:
    path = place / "control.sock"
    async with serving(path, telemetry):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


async def test_a_path_that_is_too_long_says_what_to_change(
    place: Path, telemetry: Telemetry
) -> None:
    assert "--state-dir" in await _problem(place / ("x" * 100) / "control.sock", telemetry)
    name = "x" * (107 - len(str(place)) - 1)
    async with serving(place / name, telemetry):
        assert (await command(place / name, {"do": "status"})).status == 200
    assert "107 bytes" in await _problem(place / (name + "x"), telemetry)


async def test_a_directory_that_is_not_there_is_one_clear_error(
    place: Path, telemetry: Telemetry
) -> None:
    assert "No such file" in await _problem(place / "missing" / "control.sock", telemetry)
