"""What systemd is told, on a real datagram socket, and that nothing is said without one."""

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from coordinator.daemon.notify import STARTED, feed_watchdog, notify

pytestmark = pytest.mark.anyio

SECONDS = 60.0
Listen = Callable[[str], socket.socket]


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listen]:
    """Be systemd at an address as it stands in $NOTIFY_SOCKET."""
    opened: list[socket.socket] = []
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)

    def begin(address: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        opened.append(sock)
        sock.bind("\0" + address[1:] if address.startswith("@") else address)
        sock.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        return sock

    yield begin
    for sock in opened:
        sock.close()


def test_a_message_reaches_the_socket_in_the_file_system(listen: Listen, tmp_path: Path) -> None:
    systemd = listen(str(tmp_path / "notify"))
    notify(STARTED)
    assert systemd.recv(100) == b"READY=1"


def test_a_message_reaches_an_abstract_socket(listen: Listen) -> None:
    systemd = listen(f"@{uuid.uuid4().hex}")
    notify("STOPPING=1")
    assert systemd.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1", "/absent/socket", "@absent"])
def test_without_a_listener_nothing_happens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify(STARTED)


def test_a_systemd_that_reads_nothing_never_blocks_us(listen: Listen, tmp_path: Path) -> None:
    systemd = listen(str(tmp_path / "notify"))
    for number in range(2000):  # the queue of a datagram socket holds a few only
        notify(f"STATUS={number}")
    assert systemd.recv(100) == b"STATUS=0"


async def pinged(systemd: socket.socket, count: int) -> list[bytes]:
    """The first pings of a watchdog that runs meanwhile."""
    heard: list[bytes] = []
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(feed_watchdog)
            while len(heard) < count:
                heard += [await anyio.to_thread.run_sync(systemd.recv, 100)]
            group.cancel_scope.cancel()
    return heard


@pytest.mark.parametrize("named", [False, True])
async def test_the_watchdog_is_fed_as_often_as_the_unit_wants(
    named: bool, listen: Listen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = listen(str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    if named:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    began = anyio.current_time()
    assert await pinged(systemd, 4) == [b"WATCHDOG=1"] * 4
    assert anyio.current_time() - began >= 0.03, "three pauses of a third of the time each"


@pytest.mark.parametrize(
    ("microseconds", "pid"), [("", None), ("soon", None), ("30000", "1"), ("30000", "x")]
)
async def test_a_watchdog_that_is_not_ours_is_not_fed(
    microseconds: str,
    pid: str | None,
    listen: Listen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    systemd = listen(str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    with anyio.fail_after(SECONDS):
        await feed_watchdog()
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(100)
