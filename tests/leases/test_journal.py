"""The journal: what is on disk, and that old forms still load."""

import stat
from pathlib import Path

import pytest

from coordinator.core.model import CommandKind, Outcome
from coordinator.leases import Claim, Journal, JournalEntry

CLAIM = Claim("r1", CommandKind.RESUME, 3, "train.py", {"lr": {"value": 0.1}})
DATA = Path(__file__).parent / "data"


def test_an_entry_comes_back_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "journal")
    assert journal.load() == ([], [])
    entry = JournalEntry.of(CLAIM, "t1")
    journal.put(entry)
    assert journal.load() == ([entry], [])
    assert entry.claim == CLAIM
    assert (entry.lease.token, entry.lease.fence, entry.state) == ("t1", 0, "acquiring")


def test_a_later_entry_of_a_token_replaces_the_earlier_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(JournalEntry.of(CLAIM, "t1"))
    later = JournalEntry(
        token="t1",
        run_id="r1",
        kind=CommandKind.RESUME,
        slot=3,
        program="train.py",
        args={},
        state="releasing",
        fence=7,
        outcome=Outcome.PREEMPTED,
    )
    journal.put(later)
    assert journal.load() == ([later], [])


def test_a_removed_token_is_forgotten_and_may_be_removed_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(JournalEntry.of(CLAIM, "t1"))
    journal.remove("t1")
    journal.remove("t1")
    assert journal.load() == ([], [])


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    journal = Journal(directory)
    journal.load()
    journal.put(JournalEntry.of(CLAIM, "t1"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "t1.json").stat().st_mode) == 0o600


def test_a_write_that_was_cut_short_is_not_an_entry(tmp_path: Path) -> None:
    (tmp_path / "t1.part").write_text('{"token": "t1", "run')
    assert Journal(tmp_path).load() == ([], [])


def test_a_damaged_entry_is_reported_and_kept_and_hides_no_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(JournalEntry.of(CLAIM, "t1"))
    damaged = tmp_path / "t0.json"
    damaged.write_text("{")
    entries, broken = journal.load()
    assert [entry.token for entry in entries] == ["t1"]
    assert broken == [damaged]
    assert damaged.exists()


@pytest.mark.parametrize("path", sorted(DATA.glob("journal-*.json")), ids=lambda path: path.name)
def test_old_forms_still_load(path: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(path.read_bytes())
    (entry,), broken = Journal(tmp_path).load()
    assert broken == []
    assert (entry.run_id, entry.state, entry.fence) == ("r1", "held", 1_700_000_000_000)
