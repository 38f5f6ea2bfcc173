"""The stream that a person or a journal reads."""

import io
import json
import os
import pty
from pathlib import Path

import structlog

from coordinator.telemetry import configure

log = structlog.get_logger()


def _read(fd: int) -> str:
    os.set_blocking(fd, False)
    data = b""
    try:
        while chunk := os.read(fd, 65536):
            data += chunk
    except (BlockingIOError, OSError):
        pass
    return data.decode()


def test_json_lines_go_to_a_pipe() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, configure("auto", None, node="n", stream=stream):
        log.info("daemon_started", slots=2)
    assert json.loads(_read(reader))["slots"] == 2
    os.close(reader)


def test_lines_for_people_go_to_a_terminal() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        with configure("auto", None, node="n", stream=stream):
            log.warning("lease_lost", run_id="r1")
        shown = _read(master)
    assert "lease_lost" in shown
    assert "run_id=r1" in shown
    assert "{" not in shown
    os.close(master)


def test_the_console_form_can_be_asked_for() -> None:
    stream = io.StringIO()
    with configure("console", None, node="n", stream=stream):
        log.info("daemon_started", slots=2)
    assert stream.getvalue().endswith(" daemon_started slots=2\n")


def test_a_reader_that_does_not_read_blocks_neither_logging_nor_the_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    file = tmp_path / "events.jsonl"
    with (
        os.fdopen(writer, "w") as stream,
        configure("json", file, node="n", stream=stream) as telemetry,
    ):
        for number in range(2000):  # far more than a pipe holds (64 KiB)
            log.info("counted", number=number)
        assert [event["number"] for event in telemetry.tail(2000)] == list(range(2000))
        _read(reader)
        log.info("reader_returned")
        telemetry.tail(0)
        telemetry.tail(0)  # what the writer itself had to say has been written as well
        shown = _read(reader)
    lost = [json.loads(line) for line in shown.splitlines() if "console_lines_lost" in line]
    assert len(lost) == 1
    assert lost[0]["lost"] > 100
    os.close(reader)


def test_a_stream_that_was_closed_ends_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with (
        os.fdopen(writer, "w") as stream,
        configure("json", tmp_path / "e.jsonl", node="n", stream=stream) as telemetry,
    ):
        log.info("first_seen")
        log.info("second_seen")
        assert len(telemetry.tail(9)) == 2
