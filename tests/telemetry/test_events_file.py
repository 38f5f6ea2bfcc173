"""The events file: rotation, the past, and trouble with the disk."""

import json
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import structlog

from coordinator.telemetry import configure
from coordinator.telemetry.rotation import EventsFile
from tests.telemetry.conftest import Pipeline

log = structlog.get_logger()


def test_files_are_rotated_by_size_and_only_so_many_kept(pipeline: Pipeline) -> None:
    for number in range(1000):
        log.info("counted", number=number)
    numbers = [event["number"] for event in pipeline.events()]
    names = sorted(path.name for path in pipeline.file.parent.iterdir())
    assert names == ["events.jsonl"] + [f"events.jsonl.{part}" for part in (1, 2, 3)]
    assert all(path.stat().st_size <= 10_000 for path in pipeline.file.parent.iterdir())
    assert numbers == list(range(1000 - len(numbers), 1000))
    assert len(numbers) > 150


def test_the_last_events_are_found_across_files(pipeline: Pipeline) -> None:
    for number in range(300):
        log.info("counted", number=number)
    for count in (0, 1, 99, 200):
        tail = pipeline.telemetry.tail(count)
        assert [event["number"] for event in tail] == list(range(300 - count, 300))


def test_events_of_an_earlier_daemon_are_the_past_of_the_next(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    for name in ("first", "second"):
        with configure("json", file, node=name):
            log.info("daemon_started")
    with configure("json", file, node="third") as telemetry:
        assert [event["node"] for event in telemetry.tail(10)] == ["first", "second"]


def test_a_line_longer_than_a_chunk_is_read_back_whole(tmp_path: Path) -> None:
    file = EventsFile(tmp_path / "events.jsonl", 10_000_000, 2)
    long = b'"' + b"x" * 200_000 + b'"\n'
    for line in (b"1\n", long, b"3\n"):
        file.write(line)
    assert file.snapshot().last(2) == [long.rstrip(), b"3"]
    assert file.snapshot().last(9) == [b"1", long.rstrip(), b"3"]
    file.close()


def test_a_snapshot_survives_rotation(tmp_path: Path) -> None:
    file = EventsFile(tmp_path / "events.jsonl", 10, 1)
    file.write(b"1111\n")
    file.write(b"2222\n")
    snapshot = file.snapshot()
    for number in range(3, 9):
        file.write(f"{number * 1111}\n".encode())
    assert snapshot.last(5) == [b"1111", b"2222"]
    file.close()


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"whole"}\n{"event":"to')
    with configure("json", path, node="n") as telemetry:
        log.info("daemon_started")
        assert [event["event"] for event in telemetry.tail(9)] == ["whole", "daemon_started"]
    assert path.read_bytes().count(b"\n") == 3


def test_a_file_that_was_moved_away_is_recreated(pipeline: Pipeline) -> None:
    log.info("before_moved")
    assert pipeline.events()
    pipeline.file.rename(pipeline.file.with_name("taken"))
    log.info("after_moved")
    assert [event["event"] for event in pipeline.events()] == ["after_moved"]


def test_a_directory_that_is_gone_costs_one_warning_and_is_used_again_once_back(
    pipeline: Pipeline,
) -> None:
    log.info("first_seen")
    pipeline.events()
    pipeline.file.unlink()
    pipeline.file.parent.rmdir()
    for number in range(5):
        log.info("counted", number=number)
    names = [event["event"] for event in pipeline.console_events()]
    assert names.count("counted") == 5
    assert names.count("events_file_write_failed") == 1
    pipeline.file.parent.mkdir()
    log.info("last_seen")
    assert pipeline.events()[0]["event"] == "last_seen"
    resumed = [
        event for event in pipeline.events() if event["event"] == "events_file_write_resumed"
    ]
    # Five events and the warning about the first of them.
    assert [event["lost"] for event in resumed] == [6]


_FULL = """
    import resource, sys
    from pathlib import Path
    import structlog
    from coordinator.telemetry import configure
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    log = structlog.get_logger()
    with configure("json", Path(sys.argv[1]), node="n"):
        for number in range(100):
            log.info("counted", number=number)
"""


def test_a_full_disk_leaves_whole_lines_and_a_daemon_that_carries_on(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel write short and then refuse, as a full disk does."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    path = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_FULL), path],
        check=True,
        capture_output=True,
        timeout=30,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    shown = [json.loads(line) for line in done.stderr.splitlines()]
    assert sum(event["event"] == "counted" for event in shown) == 100
    failures = [event for event in shown if event["event"] == "events_file_write_failed"]
    assert len(failures) == 1
    kept = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert path.read_bytes().endswith(b"\n")
    assert [event["number"] for event in kept] == list(range(len(kept)))
    assert len(kept) > 10


@pytest.mark.parametrize("count", [0, 3])
def test_without_a_file_the_last_events_are_remembered(count: int) -> None:
    with configure("json", None, node="n") as telemetry:
        for number in range(10):
            log.info("counted", number=number)
        tail = telemetry.tail(count)
    assert [event["number"] for event in tail] == list(range(10 - count, 10))
