"""Why a stay ended: every rule of the table, and the endings that are known from real trainings."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.model import Outcome
from coordinator.core.outcome import TABLE, Ending, asks_the_server, judge

OK = Ending(exit_code=0, signal=None)
BAD = Ending(exit_code=1, signal=None)
TERMED = Ending(exit_code=None, signal=15)
KILLED = Ending(exit_code=None, signal=9)
UNSEEN = Ending(exit_code=None, signal=None)

ONE_FOR_EACH_RULE = [
    replace(OK, fenced=True),
    replace(UNSEEN, started=False),
    replace(KILLED, cancelled=True),
    replace(OK, preempted=True),
    OK,
    replace(TERMED, preempted=True, server_state="FINISHED"),
    replace(BAD, server_state="PREEMPTED"),
    replace(TERMED, preempted=True),
    replace(KILLED, oom=True),
    KILLED,
    UNSEEN,
    BAD,
]

endings = st.builds(
    Ending,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    started=st.booleans(),
    preempted=st.booleans(),
    killed=st.booleans(),
    cancelled=st.booleans(),
    fenced=st.booleans(),
    moved_on=st.booleans(),
    oom=st.booleans(),
    server_state=st.none()
    | st.sampled_from(["RUNNING", "PENDING", "PREEMPTED", "PREEMPTING", "FINISHED", "FAILED"])
    | st.text(max_size=8),
)


@pytest.mark.parametrize(
    ("ending", "rule"),
    list(zip(ONE_FOR_EACH_RULE, TABLE, strict=True)),
    ids=[rule[0] for rule in TABLE],
)
def test_each_rule_of_the_table_is_the_first_for_some_ending(
    ending: Ending, rule: tuple[str, object, Outcome]
) -> None:
    assert judge(ending) == (rule[2], rule[0])


def test_every_outcome_has_a_rule() -> None:
    assert {outcome for _, _, outcome in TABLE} == set(Outcome)


@settings(deadline=None, max_examples=300)
@given(endings)
def test_every_ending_has_an_outcome_and_it_is_that_of_the_first_rule_that_applies(
    ending: Ending,
) -> None:
    applying = [(outcome, cause) for cause, applies, outcome in TABLE if applies(ending)]
    assert judge(ending) == applying[0]


@settings(deadline=None, max_examples=300)
@given(endings, st.none() | st.sampled_from(["RUNNING", "PREEMPTED", "FINISHED", "CRASHED"]))
def test_the_server_is_asked_whenever_its_answer_could_change_the_outcome(
    ending: Ending, server_state: str | None
) -> None:
    if judge(ending) != judge(replace(ending, server_state=server_state)):
        assert asks_the_server(ending)


# --- the real server's state table, without our doing ---------------------------------------------
@pytest.mark.parametrize(
    ("ending", "server_state", "outcome"),
    [
        pytest.param(OK, "FINISHED", Outcome.FINISHED, id="exit 0"),
        pytest.param(BAD, "FAILED", Outcome.FAILED, id="exit 1"),
        pytest.param(BAD, "PREEMPTED", Outcome.PREEMPTED, id="exit 1, marked right after init"),
        pytest.param(KILLED, "RUNNING", Outcome.CRASHED, id="SIGKILL: silence for five minutes"),
        pytest.param(KILLED, "PREEMPTED", Outcome.PREEMPTED, id="SIGKILL, marked, after the five"),
        pytest.param(Ending(None, 2), "KILLED", Outcome.CRASHED, id="SIGINT, unmarked"),
        pytest.param(Ending(255, None), "PREEMPTED", Outcome.PREEMPTED, id="SIGINT, marked"),
        pytest.param(TERMED, "RUNNING", Outcome.CRASHED, id="SIGTERM, unmarked"),
        pytest.param(Ending(143, None), "PREEMPTED", Outcome.PREEMPTED, id="SIGTERM, handler"),
        pytest.param(Ending(None, 10), "RUNNING", Outcome.CRASHED, id="SIGUSR1, unmarked"),
        pytest.param(Ending(None, 11), "RUNNING", Outcome.CRASHED, id="segmentation fault"),
        pytest.param(Ending(127, None), None, Outcome.FAILED, id="the program is not there"),
        pytest.param(Ending(75, None), "FAILED", Outcome.FAILED, id="exit 75 of a training"),
    ],
)
def test_an_ending_of_its_own_is_called_what_the_server_makes_of_it(
    ending: Ending, server_state: str, outcome: Outcome
) -> None:
    assert judge(replace(ending, server_state=server_state))[0] is outcome


# --- after our signal -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ending", "server_state", "outcome"),
    [
        pytest.param(Ending(143, None), "PREEMPTED", Outcome.PREEMPTED, id="saved and marked"),
        pytest.param(
            Ending(143, None, moved_on=True), "RUNNING", Outcome.PREEMPTED, id="resumed already"
        ),
        pytest.param(BAD, "RUNNING", Outcome.INTERRUPTED, id="exit that nobody reported"),
        pytest.param(Ending(143, None), "FAILED", Outcome.INTERRUPTED, id="exit without a mark"),
        pytest.param(Ending(143, None), None, Outcome.INTERRUPTED, id="server unreachable"),
        pytest.param(TERMED, "RUNNING", Outcome.INTERRUPTED, id="no handler"),
        pytest.param(OK, "FINISHED", Outcome.PREEMPT_LOST, id="a framework that exits 0 on TERM"),
        pytest.param(replace(KILLED, killed=True), "RUNNING", Outcome.INTERRUPTED, id="grace over"),
        pytest.param(
            replace(KILLED, killed=True), "PREEMPTED", Outcome.PREEMPTED, id="killed, but marked"
        ),
        pytest.param(replace(KILLED, oom=True), "RUNNING", Outcome.INTERRUPTED, id="OOM as well"),
        pytest.param(
            replace(KILLED, cancelled=True), "KILLED", Outcome.CANCELLED, id="cancelled as well"
        ),
    ],
)
def test_an_ending_after_our_signal_depends_on_exit_code_and_server(
    ending: Ending, server_state: str | None, outcome: Outcome
) -> None:
    assert judge(replace(ending, preempted=True, server_state=server_state))[0] is outcome


def test_a_run_that_shows_running_after_a_signal_of_ours_killed_it_was_not_resumed() -> None:
    """Its old life looks alike for five minutes: nobody has reported its end."""
    assert not replace(TERMED, preempted=True, server_state="RUNNING").requeued


def test_a_run_that_finished_although_a_person_stopped_it_has_finished() -> None:
    assert judge(replace(OK, cancelled=True))[0] is Outcome.FINISHED


def test_a_fenced_copy_is_fenced_whatever_else_is_known() -> None:
    for ending in ONE_FOR_EACH_RULE:
        assert judge(replace(ending, fenced=True))[0] is Outcome.FENCED


@pytest.mark.parametrize("ending", [OK, replace(BAD, fenced=True), replace(BAD, started=False)])
def test_the_server_is_not_asked_when_it_could_not_change_the_outcome(ending: Ending) -> None:
    assert not asks_the_server(ending)
