"""Events and training output that go on, and the end of the server with followers."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from anyio import to_thread
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.control import LogLine, streams
from coordinator.core.protocol import RequestUnion
from coordinator.telemetry import Telemetry, configure
from tests.control.daemon import Daemon, serving
from tests.control.raw import ask, command

pytestmark = pytest.mark.anyio
log = structlog.get_logger()


class Follower:
    """Reads the chunks of one stream line by line."""

    def __init__(self, stream: BufferedByteReceiveStream) -> None:
        self._stream = stream

    async def line(self) -> bytes:
        """The next line, blank ones included. Raises EndOfStream at the clean end."""
        with anyio.fail_after(20):
            size = int(await self._stream.receive_until(b"\r\n", 100), 16)
            data = await self._stream.receive_exactly(size + 2)
        if size == 0:
            raise anyio.EndOfStream
        return data.removesuffix(b"\r\n")

    async def json(self) -> Any:
        while not (line := await self.line()).strip():
            pass
        return json.loads(line)


@asynccontextmanager
async def following(path: Path, target: str) -> AsyncIterator[Follower]:
    async with await anyio.connect_unix(path) as stream:
        await stream.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        buffered = BufferedByteReceiveStream(stream)
        with anyio.fail_after(20):
            head = await buffered.receive_until(b"\r\n\r\n", 10_000)
        assert b" 200 " in head.splitlines()[0]
        yield Follower(buffered)


async def test_past_events_come_in_order_and_then_it_ends(daemon: Daemon) -> None:
    for number in range(30):
        log.info("counted", number=number)
    async with following(daemon.socket, "/v1/events?n=3") as follower:
        assert [(await follower.json())["number"] for _ in range(3)] == [27, 28, 29]
        with pytest.raises(anyio.EndOfStream):
            await follower.json()


async def test_followers_get_the_past_and_then_what_comes(daemon: Daemon) -> None:
    log.info("counted", number=0)
    async with following(daemon.socket, "/v1/events?n=1&follow=1") as follower:
        assert (await follower.json())["number"] == 0
        for number in range(1, 6):
            log.info("counted", number=number)
            assert (await follower.json())["number"] == number


async def test_following_continues_through_rotation(place: Path) -> None:
    file = place / "small.jsonl"
    with configure("json", file, 10_000, 2, "node-1") as telemetry:
        async with (
            serving(place / "control.sock", telemetry) as daemon,
            following(daemon.socket, "/v1/events?n=0&follow=1") as follower,
        ):
            for number in range(400):
                log.info("counted", number=number)
                assert (await follower.json())["number"] == number
        assert file.with_name("small.jsonl.2").exists()


async def test_a_follower_that_does_not_read_is_told_what_it_lost_and_blocks_nothing(
    daemon: Daemon,
) -> None:
    padding = "x" * 4000
    total = 1300  # 5 MB: more than the sockets and a buffer of 1000 events hold
    async with following(daemon.socket, "/v1/events?n=0&follow=1") as slow:
        async with following(daemon.socket, "/v1/events?n=0&follow=1") as quick:
            for number in range(total):
                log.info("counted", number=number, padding=padding)
                assert (await quick.json())["number"] == number
        assert (await command(daemon.socket, {"do": "status"})).status == 200
        got = lost = 0
        while got + lost < total:
            event = await slow.json()
            if event["event"] == "events_lost":
                lost += event["lost"]
            else:
                assert event["number"] == got + lost
                got += 1
    assert lost > 0
    assert got > 0


async def test_a_silent_stream_sends_blank_lines(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 0.02)
    async with following(daemon.socket, "/v1/events?n=0&follow=1") as follower:
        assert [await follower.line() for _ in range(3)] == [b"\n"] * 3
        log.info("counted", number=1)
        assert (await follower.json())["number"] == 1


async def test_output_of_trainings_is_streamed_with_its_slot_and_run(daemon: Daemon) -> None:
    daemon.log_lines = [LogLine(0, "r0", "before"), LogLine(0, "r0", "last")]
    async with following(daemon.socket, "/v1/logs?target=0&n=1&follow=1") as follower:
        assert await follower.json() == {"slot": 0, "run_id": "r0", "line": "last"}
        daemon.print_line(LogLine(1, "r1", 'ünï "quoted"'))
        assert await follower.json() == {"slot": 1, "run_id": "r1", "line": 'ünï "quoted"'}
    assert daemon.log_queries == [("0", 1, True)]


async def test_an_unknown_target_ends_the_stream_with_invalid(daemon: Daemon) -> None:
    async with following(daemon.socket, "/v1/logs?target=nowhere") as follower:
        assert await follower.json() == {
            "answer": "invalid",
            "message": "there is no slot or run 'nowhere'",
        }


async def test_output_that_breaks_off_ends_the_stream_with_failed(daemon: Daemon) -> None:
    daemon.log_lines = [LogLine(0, "r0", "fine"), LogLine(0, "r0", "\udcff")]
    async with following(daemon.socket, "/v1/logs?n=2") as follower:
        assert (await follower.json())["line"] == "fine"
        assert (await follower.json())["answer"] == "failed"
    names = [event["event"] for event in await to_thread.run_sync(daemon.telemetry.tail, 5)]
    assert "control_stream_failed" in names


async def test_a_reader_of_output_is_closed_when_its_client_leaves(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 0.02)
    daemon.log_lines = [LogLine(0, "r0", "line")]
    async with following(daemon.socket, "/v1/logs?follow=1") as follower:
        await follower.json()
        assert not daemon.log_reader_closed.is_set()
    with anyio.fail_after(20):
        await daemon.log_reader_closed.wait()


async def test_there_is_a_bound_on_followers(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_FOLLOWERS", 2)
    target = "/v1/events?n=0&follow=1"
    async with following(daemon.socket, target), following(daemon.socket, target):
        reply = await ask(daemon.socket, target)
        assert (reply.status, reply.json["answer"]) == (409, "refused")


async def test_the_server_ends_in_time_with_followers_that_listen_or_do_not(
    place: Path, telemetry: Telemetry
) -> None:
    async with serving(place / "control.sock", telemetry) as daemon:
        async with (
            following(daemon.socket, "/v1/events?n=0&follow=1") as listening,
            following(daemon.socket, "/v1/logs?follow=1"),
            following(daemon.socket, "/v1/events?n=0&follow=1"),
        ):
            for _ in range(300):  # the third never reads: fill it up to the brim
                log.info("counted", padding="x" * 10_000)
                await listening.json()
            began = time.monotonic()
            await daemon.stop()
            assert time.monotonic() - began < 15
            with pytest.raises(anyio.EndOfStream):
                await listening.line()
        assert daemon.log_reader_closed.is_set()


async def test_a_command_in_progress_is_still_answered_when_the_server_ends(
    place: Path, telemetry: Telemetry
) -> None:
    """`stop` is answered by a daemon that is about to go."""
    codes: list[int] = []
    begun, finish = anyio.Event(), anyio.Event()

    async def work(_request: RequestUnion) -> None:
        begun.set()
        await finish.wait()

    async def one() -> None:
        codes.append((await command(place / "control.sock", {"do": "stop"})).status)

    async with serving(place / "control.sock", telemetry) as daemon:
        daemon.on_command = work
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            with anyio.fail_after(20):
                await begun.wait()
            daemon.scope.cancel()
            await anyio.wait_all_tasks_blocked()
            finish.set()
        await daemon.stop()
    assert codes == [200]
