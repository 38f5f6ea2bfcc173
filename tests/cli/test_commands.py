"""What each command asks the daemon for, and what it prints."""

import msgspec
import pytest

from coordinator.core.model import DownMode, NodeState, SlotState
from coordinator.core.protocol import (
    ChangeSweep,
    Drain,
    GetRuns,
    Pause,
    Preempt,
    RequestUnion,
    Resume,
    Scale,
    Signal,
    Stop,
    Undrain,
)
from tests.control.daemon import LEASE, RUN, Daemon, ctl, ctl_process, slot, status

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("scale 8", Scale("8")),
        ("scale +2", Scale("+2")),
        ("scale -1", Scale("-1")),
        ("scale -- -2", Scale("-2")),
        ("scale -3 --down preempt", Scale("-3", DownMode.PREEMPT)),
        ("scale --down kill -12", Scale("-12", DownMode.KILL)),
        ("drain", Drain()),
        ("undrain", Undrain()),
        ("pause", Pause()),
        ("resume", Resume()),
        ("resume 1a2b3c4d", Resume("1a2b3c4d")),
        ("preempt", Preempt()),
        ("preempt 2 --grace 1m30s", Preempt("2", 90.0)),
        ("preempt run1 --grace 0", Preempt("run1", 0.0)),
        ("signal usr1 all", Signal("SIGUSR1", "all")),
        ("signal 15 0", Signal("SIGTERM", "0")),
        ("stop", Stop(DownMode.PREEMPT)),
        ("stop --down drain", Stop(DownMode.DRAIN)),
        ("sweep pause", ChangeSweep("pause")),
        ("sweep resume", ChangeSweep("resume")),
        ("sweep stop", ChangeSweep("stop")),
        ("sweep cancel", ChangeSweep("cancel")),
        ("sweep cancel --at-once", ChangeSweep("cancel", graceful=False)),
        ("sweep cancel --graceful --grace 2m", ChangeSweep("cancel", True, 120.0)),
    ],
)
async def test_a_command_becomes_its_request(
    daemon: Daemon, line: str, request_: RequestUnion
) -> None:
    result = await ctl("--socket", str(daemon.socket), *line.split())
    assert (result.code, result.out, result.err) == (0, "as you say\n", "")
    assert daemon.asked == [request_]


async def test_it_runs_as_a_module(daemon: Daemon) -> None:
    result = await ctl_process("scale", "-1", "--socket", str(daemon.socket))
    assert (result.code, result.out, result.err) == (0, "as you say\n", "")
    assert daemon.asked == [Scale("-1")]


async def test_json_and_socket_stand_before_or_after_the_command(daemon: Daemon) -> None:
    expected = msgspec.to_builtins(daemon.view)
    path = str(daemon.socket)
    for line in (
        ["--json", "--socket", path, "status"],
        ["status", "--json", "--socket", path],
        ["--socket", path, "status", "--json"],
    ):
        result = await ctl(*line)
        assert (result.code, result.json, result.err) == (0, expected, "")


async def test_the_later_socket_wins(daemon: Daemon) -> None:
    result = await ctl("--socket", "/nowhere", "status", "--socket", str(daemon.socket))
    assert result.code == 0


@pytest.mark.parametrize("name", ["COORDINATOR_SOCKET", "COORDINATOR_CONTROL_SOCKET"])
async def test_the_socket_may_come_from_the_environment(daemon: Daemon, name: str) -> None:
    assert (await ctl("status", env={name: str(daemon.socket)})).code == 0


async def test_the_socket_is_found_in_the_state_directory(daemon: Daemon) -> None:
    state_dir = str(daemon.socket.parent)
    assert (await ctl("status", env={"COORDINATOR_STATE_DIR": state_dir})).code == 0
    assert (await ctl("status", env={"STATE_DIRECTORY": f"{state_dir}:/other"})).code == 0


async def test_json_of_runs_and_leases_are_lists_of_their_views(daemon: Daemon) -> None:
    path = str(daemon.socket)
    runs = await ctl("runs", "--limit", "3", "--json", "--socket", path)
    leases = await ctl("--socket", path, "leases", "ls", "--json")
    assert runs.json == [msgspec.to_builtins(RUN)]
    assert leases.json == [msgspec.to_builtins(LEASE)]
    assert daemon.asked[0] == GetRuns(limit=3)


async def test_json_of_a_command_is_its_answer(daemon: Daemon) -> None:
    result = await ctl("--json", "--socket", str(daemon.socket), "drain")
    assert result.json == {"answer": "done", "message": "as you say"}


async def test_json_keeps_what_a_newer_daemon_adds(daemon: Daemon) -> None:
    daemon.added = {"moon": "full"}
    expected = {**msgspec.to_builtins(daemon.view), "moon": "full"}
    result = await ctl("--json", "--socket", str(daemon.socket), "status")
    assert (result.code, result.json) == (0, expected)
    daemon.added = {"state": "dreaming", "degraded": ["odd"]}
    result = await ctl("--json", "--socket", str(daemon.socket), "status")
    assert (result.code, result.json["state"]) == (5, "dreaming")
    daemon.added = {"moon": "full"}
    assert (await ctl("--socket", str(daemon.socket), "status")).code == 0


async def test_status_is_readable_at_80_columns_and_plain_when_piped(daemon: Daemon) -> None:
    daemon.view = status(
        slot(0, SlotState.RUNNING, "run-[bold]"),
        slot(1, SlotState.STOPPING, "x" * 70, draining=True),
        slot(2, SlotState.IDLE),
        desired=2,
    )
    result = await ctl("status", "--socket", str(daemon.socket))
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 80
    assert "\x1b" not in result.out
    for word in ("node-1", "entity/project/abc123", "run-[bold]", "stopping", "4000", "embedded"):
        assert word in result.out
    assert result.out.count("x") >= 70


async def test_a_degraded_node_says_why_first_and_exits_5(daemon: Daemon) -> None:
    daemon.view = status(
        slot(0, SlotState.IDLE), state=NodeState.PAUSED, degraded=("redis is away", "disk full")
    )
    shown = await ctl("status", "--socket", str(daemon.socket))
    assert shown.code == 5
    assert shown.out.index("DEGRADED") < shown.out.index("slot")
    for reason in ("redis is away", "disk full"):
        assert reason in shown.out
        assert reason in shown.err
    parsed = await ctl("status", "--json", "--socket", str(daemon.socket))
    assert (parsed.code, parsed.json) == (5, msgspec.to_builtins(daemon.view))


async def test_tables_of_runs_and_leases_have_what_matters(daemon: Daemon) -> None:
    path = str(daemon.socket)
    runs = await ctl("runs", "--socket", path)
    leases = await ctl("leases", "ls", "--socket", path)
    for word in ("run1", "crashed", "SIGSEGV", "3m12s"):
        assert word in runs.out
    for word in ("run1", "node-2", "held", "1m02s", "in 51s"):
        assert word in leases.out
    assert max(map(len, (runs.out + leases.out).splitlines())) <= 80


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_completion_prints_a_script(shell: str) -> None:
    result = await ctl("completion", shell)
    assert result.code == 0
    assert "_COORDINATORCTL_COMPLETE" in result.out
