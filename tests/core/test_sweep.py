"""When a sweep that is over may go on, and how its queue is read."""

import json

import pytest

from coordinator.core import wire
from coordinator.core.model import SweepState
from coordinator.core.sweep import SweepVerb, SweepWork, why_not_revived


def work(
    state: SweepState = SweepState.FINISHED, runs: int | None = 6, expected: int | None = 6
) -> SweepWork:
    return SweepWork(state, runs, expected, ("r1@t",))


@pytest.mark.parametrize("runs", [6, 7])
def test_an_exhausted_search_may_go_on(runs: int) -> None:
    assert why_not_revived(work(runs=runs)) is None


@pytest.mark.parametrize("state", [s for s in SweepState if s is not SweepState.FINISHED])
def test_no_other_state_is_touched(state: SweepState) -> None:
    assert state in str(why_not_revived(work(state)))


def test_a_sweep_with_configurations_left_was_stopped_by_a_person() -> None:
    assert "5 of 6" in str(why_not_revived(work(runs=5)))


@pytest.mark.parametrize(("runs", "expected"), [(900, None), (None, 6), (None, None)])
def test_a_search_without_a_known_end_is_never_exhausted(
    runs: int | None, expected: int | None
) -> None:
    assert why_not_revived(work(runs=runs, expected=expected)) is not None


@pytest.mark.parametrize(
    ("verb", "option"),
    [("pause", "--pause"), ("resume", "--resume"), ("stop", "--stop"), ("cancel", "--cancel"),
     ("revive", "--resume")],
)  # fmt: skip
def test_each_verb_is_an_option_of_wandb_sweep(verb: str, option: str) -> None:
    assert SweepVerb(verb).option == option


def answer(sweep: object) -> bytes:
    nodes = [{"node": {"name": "r1", "heartbeatAt": "2026-01-02T03:04:05"}}]
    return json.dumps({"data": {"project": {"sweep": sweep, "runs": {"edges": nodes}}}}).encode()


def test_the_queue_of_a_sweep_is_read_with_the_time_each_run_was_heard_of() -> None:
    sweep = {"id": "x", "state": "FINISHED", "runCount": 6, "runCountExpected": None}
    assert wire.sweep_work(answer(sweep)) == SweepWork(
        SweepState.FINISHED, 6, None, ("r1@2026-01-02T03:04:05",)
    )


@pytest.mark.parametrize(
    "body",
    [answer(None), b'{"errors": [{"message": "Cannot query field"}], "data": null}', b"", b"[]",
     answer({"state": "FINISHED"})],
)  # fmt: skip
def test_another_answer_than_about_the_queue_is_none(body: bytes) -> None:
    assert wire.sweep_work(body) is None
