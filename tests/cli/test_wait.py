"""Waiting for a state, with a bound."""

import sys
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import NodeState, SlotState
from coordinator.core.protocol import RequestUnion, StatusView
from coordinator.telemetry import Telemetry
from tests.control.daemon import Daemon, Result, ctl, environment, serving, slot, status

pytestmark = pytest.mark.anyio

BUSY = status(slot(0, SlotState.RUNNING, "r0"))
IDLE = status(slot(0, SlotState.IDLE), slot(1, SlotState.CLAIMING))
DRAINED = status(state=NodeState.DRAINED)
LEAVING = status(slot(0, SlotState.RUNNING, "r0"), slot(1, SlotState.RUNNING, "r1", draining=True))
TWO = status(slot(0, SlotState.IDLE), slot(1, SlotState.IDLE))
PAUSED = status(state=NodeState.PAUSED)


async def _reaches(daemon: Daemon, before: StatusView, after: StatusView, *line: str) -> Result:
    """Run a command that waits: it must look at `before` and still be there, then at `after`."""
    results: list[Result] = []

    async def run() -> None:
        results.append(await ctl("--socket", str(daemon.socket), *line, "--timeout", "30s"))

    daemon.view = before
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        with anyio.fail_after(30):
            await daemon.looked_at(3)
        assert results == []
        daemon.view = after
    return results[0]


@pytest.mark.parametrize(
    ("goal", "before", "after"),
    [
        ("idle", BUSY, IDLE),
        ("drained", BUSY, DRAINED),
        ("running", PAUSED, BUSY),
        ("slots=2", BUSY, TWO),
        ("slots=2", LEAVING, TWO),
        ("running=1", IDLE, BUSY),
    ],
)
async def test_a_goal_is_reached_when_the_status_shows_it(
    daemon: Daemon, goal: str, before: StatusView, after: StatusView
) -> None:
    result = await _reaches(daemon, before, after, "wait", "--for", goal)
    assert (result.code, result.out, result.err) == (0, f"{goal}\n", "")


@pytest.mark.parametrize(
    ("line", "before", "after"),
    [("scale 2", LEAVING, TWO), ("scale -1", LEAVING, BUSY), ("drain", BUSY, DRAINED)],
)
async def test_wait_holds_a_command_until_it_is_done(
    daemon: Daemon, line: str, before: StatusView, after: StatusView
) -> None:
    result = await _reaches(daemon, before, after, *line.split(), "--wait")
    assert (result.code, result.out) == (0, "as you say\n")


async def test_time_that_is_up_is_4_and_says_so(daemon: Daemon) -> None:
    daemon.view = BUSY
    for line in (["wait", "--for", "idle"], ["drain", "--wait"], ["wait", "--for", "gone"]):
        result = await ctl("--socket", str(daemon.socket), "--json", *line, "--timeout", "0.1")
        assert (result.code, result.json["exit_code"]) == (4, 4)
        assert "--timeout" in result.err


async def test_waiting_for_a_daemon_that_is_not_there(place: Path) -> None:
    path = str(place / "control.sock")
    expected = {"idle": 3, "drained": 3, "slots=1": 3, "gone": 0, "running": 4}
    for goal, code in expected.items():
        result = await ctl("--socket", path, "wait", "--for", goal, "--timeout", "0.1")
        assert (goal, result.code) == (goal, code)


async def test_running_may_be_awaited_before_the_daemon_is_started(
    place: Path, telemetry: Telemetry
) -> None:
    path = place / "control.sock"
    results: list[Result] = []
    done = anyio.Event()

    async def wait() -> None:
        results.append(await ctl("--socket", str(path), "wait", "--for", "running"))
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        async with serving(path, telemetry) as daemon:
            with anyio.fail_after(30):
                await daemon.looked_at(1)
                await done.wait()
    assert results[0].code == 0


async def test_a_daemon_that_ends_while_one_waits_for_idle_is_3(
    place: Path, telemetry: Telemetry
) -> None:
    results: list[Result] = []
    path = place / "control.sock"

    async def wait() -> None:
        results.append(await ctl("--socket", str(path), "wait", "--for", "idle"))

    async with anyio.create_task_group() as group, serving(path, telemetry) as daemon:
        group.start_soon(wait)
        with anyio.fail_after(30):
            await daemon.looked_at(2)
        await daemon.stop()
    assert results[0].code == 3


async def test_gone_means_that_the_process_has_ended_too(daemon: Daemon) -> None:
    """The server of the tests ends, but its process, this one, lives on."""

    async def stop(_request: RequestUnion) -> None:
        daemon.scope.cancel()

    daemon.on_command = stop
    result = await ctl("--socket", str(daemon.socket), "stop", "--wait", "--timeout", "0.3")
    assert result.code == 4
    assert "not gone" in result.err
    await daemon.ended.wait()


_SHORT_LIVED = """
import sys
from pathlib import Path
import anyio
from coordinator.control import serve
from coordinator.core.protocol import Done
from coordinator.telemetry import configure

async def main():
    async with anyio.create_task_group() as group:
        async def handle(request):
            if type(request).__name__ == "Stop":
                group.cancel_scope.cancel()
            return Done("ending")
        await group.start(serve, Path(sys.argv[1]), handle, telemetry, None)
        print("ready", flush=True)
        await anyio.sleep_forever()

with configure("json", None, node="n") as telemetry:
    anyio.run(main)
"""


async def test_stop_waits_for_the_end_of_a_real_process(place: Path) -> None:
    path = place / "control.sock"
    line = [sys.executable, "-c", _SHORT_LIVED, str(path)]
    async with await anyio.open_process(line, env=environment(), stderr=None) as process:
        with anyio.fail_after(30):
            assert process.stdout is not None
            assert await process.stdout.receive() == b"ready\n"
        result = await ctl("--socket", str(path), "stop", "--wait")
        assert (result.code, result.out) == (0, "ending\n")
        with anyio.fail_after(5):
            assert await process.wait() == 0
