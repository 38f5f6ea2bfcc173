"""events and logs, once and going on."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.control import LogLine
from coordinator.telemetry import configure
from tests.control.daemon import Daemon, ctl, environment, serving

pytestmark = pytest.mark.anyio
log = structlog.get_logger()


@asynccontextmanager
async def _following(daemon: Daemon, *arguments: str) -> AsyncIterator[BufferedByteReceiveStream]:
    line = [sys.executable, "-m", "coordinator.cli", "--socket", str(daemon.socket), *arguments]
    async with await anyio.open_process(line, env=environment(), stderr=None) as process:
        assert process.stdout is not None
        yield BufferedByteReceiveStream(process.stdout)
        with suppress(ProcessLookupError):  # it may have ended by itself
            process.terminate()
        with anyio.fail_after(20):
            await process.wait()


async def _line(stream: BufferedByteReceiveStream) -> str:
    with anyio.fail_after(20):
        return (await stream.receive_until(b"\n", 1_000_000)).decode()


async def test_events_are_the_last_ones_one_object_a_line(daemon: Daemon) -> None:
    for number in range(30):
        log.info("counted", number=number)
    result = await ctl("events", "-n", "4", "--json", "--socket", str(daemon.socket))
    events = [json.loads(line) for line in result.out.splitlines()]
    assert [event["number"] for event in events] == [26, 27, 28, 29]
    assert list(events[0]) == ["ts", "event", "level", "node", "number"]
    shown = await ctl("events", "-n", "1", "--socket", str(daemon.socket))
    assert shown.out.endswith(" counted number=29\n")
    assert "\x1b" not in shown.out


async def test_events_are_followed_through_rotation_at_once(place: Path) -> None:
    with configure("json", place / "small.jsonl", 10_000, 2, "node-1") as telemetry:
        async with serving(place / "control.sock", telemetry) as daemon:
            log.info("counted", number=-1)
            async with _following(daemon, "events", "-f", "-n", "1", "--json") as stream:
                assert json.loads(await _line(stream))["number"] == -1
                for number in range(300):
                    log.info("counted", number=number)
                    assert json.loads(await _line(stream))["number"] == number
        assert (place / "small.jsonl.2").exists()


async def test_output_of_one_training_is_printed_as_it_is(daemon: Daemon) -> None:
    daemon.log_lines = [LogLine(0, "r0", f"step {number}") for number in range(30)]
    result = await ctl("logs", "0", "-n", "2", "--socket", str(daemon.socket))
    assert result.out == "step 28\nstep 29\n"
    assert daemon.log_queries == [("0", 2, False)]


async def test_output_of_all_is_marked_with_slot_and_run(daemon: Daemon) -> None:
    daemon.log_lines = [LogLine(0, "r0", "one"), LogLine(1, "r1", "two")]
    result = await ctl("logs", "--socket", str(daemon.socket))
    assert result.out == "[0 r0] one\n[1 r1] two\n"
    parsed = await ctl("--json", "logs", "--socket", str(daemon.socket))
    assert [json.loads(line) for line in parsed.out.splitlines()] == [
        {"slot": 0, "run_id": "r0", "line": "one"},
        {"slot": 1, "run_id": "r1", "line": "two"},
    ]


async def test_output_is_followed_at_once(daemon: Daemon) -> None:
    daemon.log_lines = [LogLine(0, "r0", "before")]
    async with _following(daemon, "logs", "r0", "-f") as stream:
        assert await _line(stream) == "before"
        for number in range(3):
            daemon.print_line(LogLine(0, "r0", f"step {number}"))
            assert await _line(stream) == f"step {number}"


async def test_an_unknown_target_is_usage(daemon: Daemon) -> None:
    result = await ctl("logs", "nowhere", "--json", "--socket", str(daemon.socket))
    assert (result.code, result.json["exit_code"]) == (2, 2)
    assert "nowhere" in result.err


async def test_following_ends_well_when_the_daemon_ends(daemon: Daemon) -> None:
    log.info("counted", number=1)
    async with _following(daemon, "events", "-f", "-n", "1", "--json") as stream:
        await _line(stream)
        await daemon.stop()
        with pytest.raises(anyio.EndOfStream), anyio.fail_after(20):
            await stream.receive()
