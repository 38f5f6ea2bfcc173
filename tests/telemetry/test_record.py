"""What one log call becomes."""

import dataclasses
import enum
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from coordinator.telemetry.line import human_line
from coordinator.telemetry.plain import MAX_TEXT
from coordinator.telemetry.stdlib import Capture
from tests.telemetry.conftest import Pipeline

log = structlog.get_logger()


def test_an_event_is_one_json_line_with_its_head_first_and_fields_in_call_order(
    pipeline: Pipeline,
) -> None:
    log.info("run_exited", slot=3, run_id="r1", outcome="finished")
    assert pipeline.events()
    (line,) = pipeline.file.read_text().splitlines()
    record = json.loads(line)
    assert list(record) == ["ts", "event", "level", "node", "slot", "run_id", "outcome"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("ts"))
    assert record == {
        "event": "run_exited",
        "level": "info",
        "node": "node-1",
        "slot": 3,
        "run_id": "r1",
        "outcome": "finished",
    }


def test_file_and_console_get_the_same_event(pipeline: Pipeline) -> None:
    log.warning("lease_lost", run_id="r1")
    assert pipeline.console_events() == pipeline.events() != []


def test_a_field_cannot_pass_for_one_of_the_head(pipeline: Pipeline) -> None:
    log.info("lease_refused", node="other", ts="never")
    (event,) = pipeline.events()
    assert (event["node"], event["node_"], event["ts_"]) == ("node-1", "other", "never")
    assert event["ts"] != "never"


def test_debug_is_left_out(pipeline: Pipeline) -> None:
    log.debug("detail_seen")
    assert pipeline.events() == []


class Colour(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Pair:
    left: int
    right: Path


class Struct(msgspec.Struct):
    api_key: str
    count: int


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Colour.RED, "red"),
        (Path("/x/y"), "/x/y"),
        (Pair(1, Path("/p")), {"left": 1, "right": "/p"}),
        (Struct("geheim", 2), {"api_key": "[redacted]", "count": 2}),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (b"\xff\n", "\\xff\n"),
        ("bad \udcff name", "bad \\udcff name"),
        (2**80, str(2**80)),
        (float("nan"), None),
        (ValueError("no good"), "no good"),
        (Hostile(), "<Hostile>"),
    ],
)
def test_any_value_can_be_logged(pipeline: Pipeline, value: Any, shown: Any) -> None:
    log.info("value_seen", value=value)
    (event,) = pipeline.events()
    assert event["value"] == shown


def test_a_value_that_holds_itself_is_cut_off(pipeline: Pipeline) -> None:
    ring: list[Any] = []
    ring.append(ring)
    log.info("value_seen", value=ring)
    assert len(pipeline.events()) == 1


def test_a_huge_text_is_cut(pipeline: Pipeline) -> None:
    log.info("value_seen", value="x" * (MAX_TEXT * 3))
    (event,) = pipeline.events()
    assert len(event["value"]) < MAX_TEXT + 100


def test_an_exception_brings_its_traceback(pipeline: Pipeline) -> None:
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        log.exception("step_failed")
    (event,) = pipeline.events()
    assert event["level"] == "error"
    assert event["exception"].startswith("Traceback")
    assert event["exception"].endswith("RuntimeError: it broke")


def test_libraries_are_heard_from_warning_on(pipeline: Pipeline) -> None:
    library = logging.getLogger("aiohttp.server")
    library.info("chatter")
    library.warning("port %s is odd", 7)
    library.error("that %s", "was it")
    events = pipeline.events()
    assert [(event["level"], event["message"]) for event in events] == [
        ("warning", "port 7 is odd"),
        ("error", "that was it"),
    ]
    assert {event["logger"] for event in events} == {"aiohttp.server"}
    assert {event["event"] for event in events} == {"library_logged"}


def test_a_library_whose_arguments_do_not_fit_is_heard_all_the_same(pipeline: Pipeline) -> None:
    record = logging.LogRecord("redis", logging.ERROR, "x.py", 1, "no %s fits", ("a", "b"), None)
    Capture().handle(record)
    (event,) = pipeline.events()
    assert (event["logger"], event["message"]) == ("redis", "no %s fits")


def test_python_warnings_become_events(pipeline: Pipeline) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # catch_warnings put its own showwarning aside, not the capturing one.
        warnings.warn("old thing", UserWarning, stacklevel=1)
    (event,) = pipeline.events()
    assert "old thing" in event["message"]


def test_logging_is_given_back_when_telemetry_closes(pipeline: Pipeline) -> None:
    def capturing() -> bool:
        return any(isinstance(handler, Capture) for handler in logging.getLogger().handlers)

    assert capturing()
    pipeline.telemetry.close()
    assert not capturing()


def test_the_line_for_people_is_short_and_quotes_what_could_mislead() -> None:
    event = {
        "ts": "2026-01-02T03:04:05.678Z",
        "event": "run_exited",
        "level": "warning",
        "node": "n",
        "slot": 1,
        "detail": "two words\x1b[2J",
    }
    expected = r'03:04:05.678Z WARNING run_exited slot=1 detail="two words\u001b[2J"'
    assert human_line(event, colour=False) == expected
    assert "\x1b[33m" in human_line(event, colour=True)
