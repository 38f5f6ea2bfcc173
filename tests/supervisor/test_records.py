"""What outlives a daemon on disk: the history of runs, and commands that were not delivered."""

import json
from pathlib import Path

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from coordinator.core.model import CommandKind, Outcome
from coordinator.core.protocol import RunView
from coordinator.leases import Claim
from coordinator.supervisor.history import KEPT, History
from coordinator.supervisor.level import Level
from coordinator.supervisor.undelivered import Undelivered, train_command
from coordinator.supervisor.wanted import Wanted, WantedFile
from tests.supervisor.stage import SECONDS, command
from tests.support.disks import free_bytes, small_disk

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[1] / "data"


def view(run_id: str, outcome: Outcome | None = Outcome.FINISHED) -> RunView:
    return RunView(
        run_id=run_id, slot=0, kind=CommandKind.RUN, node="a", outcome=outcome, exit_code=0,
        signal=None, started="2026-01-02T03:04:05.678+00:00", ended=None, pid=1, fence=1,
    )  # fmt: skip


def loaded(path: Path) -> list[RunView]:
    history = History(path)
    history.load()
    return history.newest([], 0)


# --- history --------------------------------------------------------------------------------------
async def test_ended_runs_outlive_the_daemon_newest_first(tmp_path: Path) -> None:
    history = History(tmp_path / "runs.jsonl")
    for number in range(3):
        await history.add(view(f"r{number}"))
    assert loaded(tmp_path / "runs.jsonl") == history.newest([], 0)
    assert [v.run_id for v in history.newest([], 0)] == ["r2", "r1", "r0"]


async def test_living_runs_come_before_ended_ones_and_the_limit_counts_both(tmp_path: Path) -> None:
    history = History(tmp_path / "runs.jsonl")
    await history.add(view("old"))
    living = [view("first", None), view("second", None)]
    assert [v.run_id for v in history.newest(living, 0)] == ["second", "first", "old"]
    assert [v.run_id for v in history.newest(living, 2)] == ["second", "first"]


def test_without_a_file_there_is_no_history_and_no_failure(tmp_path: Path) -> None:
    assert loaded(tmp_path / "absent") == []
    assert loaded(tmp_path) == []


def test_damaged_lines_are_passed_over_and_the_others_kept(tmp_path: Path) -> None:
    good = [msgspec.json.encode(view(f"r{n}")) for n in range(3)]
    odd = [b"", b"{", b"\xff\xfe", b"[]", b'{"run_id": "x"}', b"null", b"\x00" * 50]
    lines = [good[0], *odd, good[1], msgspec.json.encode(view("x")).replace(b"finished", b"odd")]
    (tmp_path / "runs.jsonl").write_bytes(b"\n".join([*lines, good[2][:40]]))
    assert [v.run_id for v in loaded(tmp_path / "runs.jsonl")] == ["r1", "r0"]


async def test_a_run_that_ends_after_a_torn_line_is_not_lost_with_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(msgspec.json.encode(view("r0")) + b'\n{"run_id": "torn", "sl')
    history = History(path)
    history.load()
    for run_id in ("r1", "r2"):
        await history.add(view(run_id))
    assert [v.run_id for v in loaded(path)] == ["r2", "r1", "r0"]


def test_a_history_of_version_1_is_shown_by_this_version() -> None:
    assert len(loaded(DATA / "runs-1.jsonl")) == len(Outcome)


def test_only_the_newest_of_a_long_history_are_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(view(f"r{n}")) for n in range(KEPT + 50)))
    views = loaded(path)
    assert (len(views), views[0].run_id, views[-1].run_id) == (KEPT, f"r{KEPT + 49}", "r50")


async def test_runs_that_end_at_once_are_all_written_whole(tmp_path: Path) -> None:
    history = History(tmp_path / "runs.jsonl")
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(history.add, view(f"r{number}"))
    assert {v.run_id for v in loaded(tmp_path / "runs.jsonl")} == {f"r{n}" for n in range(50)}


async def test_a_history_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path) -> None:
    history = History(tmp_path / "absent" / "runs.jsonl")
    await history.add(view("r0"))
    assert [v.run_id for v in history.newest([], 0)] == ["r0"]


async def test_what_found_no_room_is_written_when_there_is_some(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, mebibytes=1):
        history = History(disk / "runs.jsonl")
        await history.add(view("r0"))
        filler = disk / "filler"
        filler.write_bytes(bytes(free_bytes(disk)))
        await history.add(view("r1" + "x" * 6000))  # more than what is left of the file's last page
        assert [v.run_id for v in loaded(disk / "runs.jsonl")] == ["r0"]
        filler.unlink()
        await history.add(view("r2"))
        assert [v.run_id[:2] for v in loaded(disk / "runs.jsonl")] == ["r2", "r1", "r0"]


# --- undelivered commands -------------------------------------------------------------------------
async def test_a_fetched_command_is_on_disk_until_it_is_settled(tmp_path: Path) -> None:
    path = tmp_path / "undelivered.json"
    kept = Undelivered(path)
    left = [command("r1", CommandKind.RESUME), command("r2")]
    await kept.keep(*left)
    assert await Undelivered(path).load() == left
    assert await Undelivered(path).load() == left, "a daemon may be killed while it starts"
    await kept.settle("r1", "r3")
    assert await Undelivered(path).load() == left[1:]
    await kept.settle("r2")
    assert not [path async for path in anyio.Path(tmp_path).iterdir()]


async def test_commands_that_come_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "undelivered.json"
    kept = Undelivered(path)
    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(kept.keep, command(f"r{number}"))
    assert {c.run_id for c in await Undelivered(path).load()} == {f"r{n}" for n in range(30)}


async def test_a_command_is_kept_by_a_task_that_was_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "undelivered.json"
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Undelivered(path).keep(command("r1"))
    assert [c.run_id for c in await Undelivered(path).load()] == ["r1"]


async def test_a_file_that_cannot_be_written_costs_the_file_only(tmp_path: Path) -> None:
    with capture_logs() as events:
        await Undelivered(tmp_path / "absent" / "undelivered.json").keep(command("r1"))
    assert [event["event"] for event in events] == ["undelivered_not_written"]


async def test_undelivered_commands_of_version_1_still_load(tmp_path: Path) -> None:
    path = tmp_path / "undelivered.json"
    path.write_bytes((DATA / "undelivered-1.json").read_bytes())
    stored = json.loads(path.read_text())
    loaded = await Undelivered(path).load()
    assert [dict(c.raw) for c in loaded] == stored
    assert [c.run_id for c in loaded] == ["r1", "r2"]


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b"[1]", b"\xff"])
async def test_a_damaged_file_of_commands_keeps_no_daemon_from_starting(
    damage: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "undelivered.json"
    path.write_bytes(damage)
    assert await Undelivered(path).load() == []
    kept = path.with_suffix(".broken")
    assert kept.read_bytes() == damage, "it is left for a person to look at"


@pytest.mark.parametrize("kind", CommandKind)
def test_a_journalled_claim_becomes_the_command_that_it_was(kind: CommandKind) -> None:
    sent = command("r1", kind)
    again = train_command(Claim(sent.run_id, sent.kind, 3, sent.program, sent.args))
    assert again == sent


# --- the wake-up ----------------------------------------------------------------------------------
async def test_a_bump_wakes_everybody_who_waits_and_nobody_who_comes_later() -> None:
    level, woken = Level(), 0

    async def wait() -> None:
        nonlocal woken
        await level.wait()
        woken += 1

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            level.bump()
            await anyio.wait_all_tasks_blocked()
            assert woken == 3
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert woken == 3
            level.bump()
            level.bump()
    assert woken == 4


# --- what people asked for ------------------------------------------------------------------------
async def test_what_was_asked_outlives_a_killed_daemon_until_one_ends_by_itself(
    tmp_path: Path,
) -> None:
    file = WantedFile(tmp_path / "wanted.json")
    asked = Wanted(configured_slots=2, slots=8, paused=True)
    await file.put(asked)
    assert await file.load(2) == asked
    await file.remove()
    assert await file.load(2) == Wanted(configured_slots=2, slots=2)


async def test_a_changed_configuration_beats_an_older_scale_but_no_pause(tmp_path: Path) -> None:
    file = WantedFile(tmp_path / "wanted.json")
    await file.put(Wanted(configured_slots=2, slots=8, paused=True))
    assert await file.load(4) == Wanted(configured_slots=4, slots=4, paused=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"slots": "x"}'])
async def test_a_damaged_file_leaves_the_configuration(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "wanted.json").write_bytes(content)
    found = await WantedFile(tmp_path / "wanted.json").load(3)
    assert found == Wanted(configured_slots=3, slots=3)
