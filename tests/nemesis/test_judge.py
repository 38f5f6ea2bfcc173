"""The judge and the verdict, on records made by hand: what they see, that they are not blind."""

import json
import random
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from tests.nemesis.daemons import marks, unaccounted
from tests.nemesis.driver import Driver, Given, Run
from tests.nemesis.judge import Stay, busy_seconds, fence_faults, overlaps, read_stays
from tests.nemesis.place import longest_silence
from tests.nemesis.verdict import Row, judge
from tests.nemesis.world import SETTINGS


def stay(run_id: str, fence: int, began: float, ended: float, node: str = "a") -> Stay:
    return Stay(run_id, node, fence, fence, began, ended, "finished")


def verdict(*stays: Stay, long: bool = False, healed: float = 0.0) -> list[str]:
    row = Row("some fault", 0.0, long, 10.0, [healed])
    return judge([row], stays, [], {}, slots=2, settings=SETTINGS, slack_seconds=0.1).broken


def test_an_overlap_is_found_to_the_nanosecond_and_touching_is_none() -> None:
    first = stay("r1", 1, 0.0, 2.0)
    assert overlaps([first, stay("r1", 2, 2.0, 3.0), stay("r2", 3, 1.0, 3.0)]) == []
    found = overlaps([first, stay("r1", 2, 2.0 - 1e-6, 3.0)])
    assert [round(pair.seconds, 9) for pair in found] == [1e-6]
    assert verdict(first, stay("r1", 2, 1.5, 3.0)) != []


def test_one_stay_within_another_overlaps_for_its_whole_length() -> None:
    (pair,) = overlaps([stay("r1", 1, 0.0, 9.0), stay("r1", 2, 3.0, 4.0)])
    assert pair.seconds == 1.0


def test_a_fence_that_does_not_grow_is_detected() -> None:
    stays = [stay("r1", 5, 0.0, 1.0), stay("r1", 5, 2.0, 3.0), stay("r1", 4, 4.0, 5.0)]
    assert len(fence_faults(stays)) == 2
    assert fence_faults([stays[0], stay("r1", 6, 2.0, 3.0)]) == []
    assert any("fence" in words for words in verdict(*stays))


def test_after_a_long_fault_an_overlap_may_last_one_renewal_and_the_stop_budget() -> None:
    allowed = 1.1 * SETTINGS.renew_seconds + SETTINGS.timeout_seconds + SETTINGS.stop_budget_seconds
    first, second = stay("r1", 1, 0.0, 5.0 + allowed), stay("r1", 2, 4.0, 9.0)
    assert verdict(first, second, long=True, healed=5.0) == []
    assert verdict(replace(first, ended=5.2 + allowed), second, long=True, healed=5.0) != []
    assert verdict(first, second, long=False, healed=5.0) != []


def test_a_window_in_which_nothing_was_granted_shows_nothing() -> None:
    assert verdict(stay("r1", 1, 0.0, 1.0)) == []
    assert "nothing was granted" in verdict()[0]


def test_only_time_within_the_window_counts_as_use() -> None:
    assert busy_seconds([stay("r1", 1, -5.0, 1.0), stay("r2", 2, 9.0, 30.0)], 0.0, 10.0) == 2.0


def test_a_record_is_read_and_one_that_has_not_begun_is_left_out(tmp_path: Path) -> None:
    head = {"run": "r1", "node": "a", "fence": 7, "token": "t", "pid": 12, "began": 10**9}
    (tmp_path / "r1.12").write_text(f"{json.dumps(head)}\n{3 * 10**9:020d} alive     \n")
    (tmp_path / "r1.13").write_text(json.dumps(head))
    assert read_stays(tmp_path) == [Stay("r1", "a", 12, 7, 1.0, 3.0, "alive")]


@pytest.mark.parametrize("dropped", [True, False])
def test_a_run_that_is_in_nobodys_hands_is_lost(tmp_path: Path, dropped: bool) -> None:
    driver = Driver(tmp_path / "d", random.Random(0), 1, (0.1, 0.2), lapse_seconds=5.0)
    run = driver.runs["r0"] = Run("r0", given=[] if dropped else [Given("a", monotonic() - 6.0)])
    driver._look(run, monotonic())
    assert [run_id for _, run_id in driver.tally.lost] == ["r0"]
    assert list(driver.queue) == ["r0"]


def test_a_command_that_died_with_its_node_is_not_the_nodes_fault(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "d", random.Random(0), 1, (0.1, 0.2), lapse_seconds=5.0)
    run = driver.runs["r0"] = Run("r0", given=[Given("a", monotonic() - 6.0)])
    driver.killed["a"] = monotonic() - 5.5
    driver._look(run, monotonic())
    assert (driver.tally.lost, driver.tally.lapsed) == ([], 1)


@pytest.mark.parametrize(("at", "found"), [(5.01, 1), (8.0, 1), (14.9, 0), (2.0, 0)])
def test_an_end_that_a_killed_copy_reported_is_a_mark_and_the_other_copys_own_end_is_none(
    at: float, found: int
) -> None:
    old = replace(stay("r1", 1, 0.0, 5.0), state="alive")
    new = stay("r1", 2, 4.0, 15.0, "b")
    event = {"what": "run_state", "run": "r1", "t": at, "state": "failed", "cause": "exit code 1"}
    assert len(list(marks([old, new], [event]))) == found
    assert list(marks([replace(old, state="finished"), new], [event])) == []


@pytest.mark.parametrize(("state", "said", "lost"), [
    ("finished", None, False), ("crashed", None, True), ("crashed", "crashed", True),
    ("crashed", "oom", False),
    ("preempted", "preempted", True), ("running", "fenced", True),
])  # fmt: skip
def test_a_run_without_an_end_on_the_server_or_on_record_is_lost(
    state: str, said: str | None, lost: bool
) -> None:
    views = [{"run_id": "r1", "outcome": said, "ended": "1"}] if said else []
    assert bool(list(unaccounted({"r1": {"state": state}}, views))) is lost


def test_gentle_faults_are_shorter_than_a_lease_lasts() -> None:
    silence = longest_silence(SETTINGS)
    worst = 1.1 * SETTINGS.renew_seconds + silence + SETTINGS.timeout_seconds
    assert 0 < worst < SETTINGS.ttl_seconds + SETTINGS.grace_seconds
