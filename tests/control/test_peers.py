"""Who may give orders: real processes of other users."""

import os
import sys
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from coordinator.telemetry import Telemetry
from tests.control.daemon import NOBODY, Daemon, Result, environment, serving

GROUP = 54321
OTHER = 54322

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run clients as other users"),
]


# Loads everything first: another user may not be able to read this Python's library.
_BECOME = """
import os, sys
import coordinator.cli.change, coordinator.cli.entry, coordinator.cli.follow
from coordinator.cli import main
uid, gid, groups = sys.argv[1:4]
os.setgroups([int(group) for group in groups.split(",") if group])
os.setgid(int(gid))
os.setuid(int(uid))
main(sys.argv[4:])
"""


async def _as(daemon: Daemon, gid: int, *groups: int, do: tuple[str, ...] = ("drain",)) -> Result:
    """Run coordinatorctl as nobody with these groups."""
    who = [str(NOBODY), str(gid), ",".join(str(group) for group in groups)]
    options = ["--socket", str(daemon.socket), "--json"]
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, "-c", _BECOME, *who, *options, *do], check=False, env=environment()
        )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


async def test_another_user_cannot_even_connect(daemon: Daemon) -> None:
    result = await _as(daemon, NOBODY)
    assert (result.code, result.json["exit_code"]) == (6, 6)
    assert "[control] group" in result.err
    assert daemon.asked == []


async def test_another_user_who_can_connect_is_refused_by_the_server(daemon: Daemon) -> None:
    daemon.socket.chmod(0o666)
    result = await _as(daemon, NOBODY)
    assert result.code == 6
    assert f"user {NOBODY} is not allowed" in result.json["error"]
    assert daemon.asked == []
    events = await to_thread.run_sync(daemon.telemetry.tail, 10)
    (refused,) = [event for event in events if event["event"] == "control_peer_refused"]
    assert refused["uid"] == NOBODY
    assert refused["pid"] > 0


async def test_streams_are_refused_as_well(daemon: Daemon) -> None:
    daemon.socket.chmod(0o666)
    for name in ("events", "logs"):
        result = await _as(daemon, NOBODY, do=(name,))
        assert (result.code, result.json["exit_code"]) == (6, 6)
    assert daemon.log_queries == []


@pytest.mark.parametrize(
    ("gid", "groups", "code"),
    [(GROUP, [], 0), (NOBODY, [OTHER, GROUP], 0), (NOBODY, [OTHER], 6), (NOBODY, [], 6)],
)
async def test_members_of_the_group_may_and_others_may_not(
    place: Path, telemetry: Telemetry, gid: int, groups: list[int], code: int
) -> None:
    async with serving(place / "control.sock", telemetry, str(GROUP)) as daemon:
        assert (await _as(daemon, gid, *groups)).code == code
        daemon.socket.chmod(0o666)  # now the server has to tell them apart by itself
        assert (await _as(daemon, gid, *groups)).code == code


async def test_what_counts_is_who_connected(daemon: Daemon) -> None:
    """A process that connected as nobody and is root by the time it asks is still nobody."""
    daemon.socket.chmod(0o666)
    script = (
        "import os, socket, sys\n"
        "os.seteuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "os.seteuid(0)\n"
        "s.sendall(b'POST /v1/command HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n'\n"
        '          b\'Content-Length: 14\\r\\n\\r\\n{"do":"drain"}\')\n'
        "print(s.recv(100).split()[1].decode())\n"
    )
    with anyio.fail_after(30):
        done = await anyio.run_process([sys.executable, "-c", script, str(daemon.socket)])
    assert done.stdout.decode().strip() == "403"
    assert daemon.asked == []
