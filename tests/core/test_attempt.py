"""The life of one attempt: the diagram, scenarios to read, and promises in every sequence."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core import attempt as module
from coordinator.core.attempt import (
    STORY_LENGTH,
    TABLE,
    Attempt,
    IllegalEventError,
    Phase,
    exit_of,
    step,
)
from coordinator.core.attempt_events import (
    Action,
    AskWorkers,
    Begin,
    Believed,
    CannotKill,
    DeadlineReached,
    Event,
    Fence,
    Hurry,
    KillEverything,
    LookForOom,
    MarkClosing,
    OutOfMemory,
    Preempt,
    Resumed,
    Signal,
    Stopped,
    Swept,
    Tell,
    Vanished,
)
from coordinator.core.model import Outcome
from coordinator.core.outcome import judge
from coordinator.core.shim_protocol import (
    Exited,
    Go,
    Hello,
    KillTree,
    SendSignal,
    SignalSent,
    Started,
    StartFailed,
    TreeGone,
)

TERM, USR1, CONT = 15, 10, 18
GO = Go({}, 1.0, "/exit")
BEGIN = Begin(GO)
ASKED = Tell(SendSignal(TERM, once=True, preempt=True))
KILL = [Tell(KillTree()), KillEverything()]


def hello(pid: int | None = 7, status: int | None = None, told: str = "") -> Hello:
    return Hello("t", "r", 1, pid, [], "/", status, told)


def after(*events: Event, start: Attempt | None = None) -> tuple[Attempt, list[Action]]:
    """The attempt, and all that it has asked for, when each event comes a second after the last."""
    attempt, asked = start or Attempt(), []
    for second, event in enumerate(events):
        attempt, actions = step(attempt, event, float(second))
        asked += actions
    return attempt, asked


# --- the diagram ----------------------------------------------------------------------------------
SAMPLES: list[Event] = [
    BEGIN, Resumed(hello(None), 1.0), Resumed(hello(7), 1.0), Resumed(hello(7, 0), 1.0),
    Preempt(TERM, 1.0), Signal(USR1, once=True), Hurry(1.0), Fence(), DeadlineReached(),
    Believed(7, 0, ""), Vanished(), Swept(), CannotKill((7,)), OutOfMemory(), Stopped(True),
    Started(7), StartFailed("no", 127), Exited(0), TreeGone(0), SignalSent(TERM, "daemon"), hello(),
]  # fmt: skip


def in_phase(phase: Phase) -> Attempt:
    """A plain attempt that has come so far."""
    way: list[Event] = [BEGIN, Started(7), Exited(0), TreeGone(0)]
    return after(*way[: phase.order])[0]


def moves() -> set[tuple[str, str, str]]:
    """What the table does, found by trying every event in every phase."""
    found = set()
    for phase in Phase:
        for event in SAMPLES:
            if phase in TABLE[type(event)][0]:
                to = step(in_phase(phase), event, 1.0)[0].phase
                if to is not phase:
                    found.add((phase.name, type(event).__name__, to.name))
    return found


def drawn() -> set[tuple[str, str, str]]:
    """What the header of the module draws."""
    lines = re.findall(
        r"^    ([A-Z][A-Z |]+) -- (.+?) --> (.+)$", module.__doc__ or "", re.MULTILINE
    )
    return {
        (one, event, to)
        for before, events, then in lines
        for one in before.split(" | ")
        for event in events.split(" | ")
        for to in then.split(" | ")
    }


def test_the_diagram_in_the_header_is_what_the_table_does() -> None:
    assert {type(event) for event in SAMPLES} == set(TABLE)
    assert moves() == drawn()


def test_every_phase_can_be_reached_and_none_goes_back() -> None:
    assert {to for _, _, to in moves()} == {phase.name for phase in Phase} - {"HELD"}
    assert all(Phase[before].order < Phase[to].order for before, _, to in moves())


# --- scenarios ------------------------------------------------------------------------------------
def test_an_undisturbed_training() -> None:
    attempt, asked = after(BEGIN, Started(7), Exited(0), TreeGone(0))
    assert asked == [Tell(GO), MarkClosing(), LookForOom()]
    assert (attempt.phase, attempt.pid, attempt.status) == (Phase.GONE, 7, 0)
    assert attempt.lived_seconds(99.0) == 1.0
    assert judge(attempt.ending(None, cancelled=False))[0] is Outcome.FINISHED


def test_a_preemption_asks_once_however_often_it_is_ordered() -> None:
    attempt, asked = after(BEGIN, Started(7), Preempt(TERM, 30.0), Preempt(USR1, 10.0))
    assert asked == [Tell(GO), MarkClosing(), ASKED]
    assert attempt.kill_at == 13.0, "the second notice only shortens the grace"
    assert attempt.stopping


def test_the_end_of_the_grace_kills_everything() -> None:
    way = (BEGIN, Started(7), Preempt(TERM, 1.0), DeadlineReached(), Exited(9), Swept())
    attempt, asked = after(*way)
    assert asked[3:5] == KILL
    assert attempt.killed
    assert judge(attempt.ending("CRASHED", cancelled=False))[0] is Outcome.INTERRUPTED


def test_a_tree_that_is_killed_after_its_main_process_has_ended_is_not_a_killed_training() -> None:
    attempt, _ = after(BEGIN, Started(7), Preempt(TERM, 1.0), Exited(0), DeadlineReached())
    assert not attempt.killed


def test_a_notice_before_the_word_to_start_is_sent_after_it() -> None:
    attempt, asked = after(Preempt(TERM, 30.0), Signal(USR1, once=False))
    assert asked == []
    attempt, asked = after(BEGIN, start=attempt)
    assert asked == [Tell(GO), ASKED, Tell(SendSignal(USR1, once=False)), MarkClosing()]
    assert attempt.owed == ()


def test_a_notice_before_an_adopted_shim_has_come_back_is_sent_to_it() -> None:
    attempt, _ = after(Preempt(TERM, 30.0))
    attempt, asked = after(Resumed(hello(), 5.0), start=attempt)
    assert asked == [ASKED, MarkClosing()]


@pytest.mark.parametrize(("told", "kill_at"), [("", None), ("preempt", 5.0), ("kill", 0.0)])
def test_the_grace_of_an_adopted_training_starts_again(told: str, kill_at: float | None) -> None:
    attempt, asked = after(Resumed(hello(told=told), 5.0))
    assert (attempt.phase, attempt.kill_at, asked) == (Phase.RUNNING, kill_at, [])


def test_an_adopted_training_that_has_ended_only_closes() -> None:
    attempt, _ = after(Resumed(hello(status=256, told="preempt"), 5.0), Exited(256), TreeGone(0))
    assert (attempt.phase, attempt.kill_at, attempt.preempted) == (Phase.GONE, None, True)


def test_workers_are_asked_if_there_is_a_launcher() -> None:
    way = (BEGIN, Started(7), Preempt(TERM, 30.0))
    _, asked = after(*way, start=Attempt(by_workers=True))
    assert asked[1:] == [MarkClosing(), Tell(SendSignal(0, preempt=True)), AskWorkers(7, TERM)]
    _, asked = after(BEGIN, Preempt(TERM, 30.0), start=Attempt(by_workers=True))
    assert asked[1:] == [MarkClosing(), ASKED], "before it has started there are none"


def test_a_stopped_training_is_woken_for_its_notice() -> None:
    _, asked = after(BEGIN, Started(7), Stopped(True), Preempt(TERM, 30.0))
    assert asked[-1] == Tell(SendSignal(CONT, once=True))


def test_a_fenced_training_goes_at_once_and_unasked() -> None:
    attempt, asked = after(BEGIN, Started(7), Fence())
    assert (attempt.kill_at, asked) == (2.0, [Tell(GO)])
    assert judge(attempt.ending(None, cancelled=False))[0] is Outcome.FENCED


def test_a_command_that_cannot_be_executed() -> None:
    attempt, _ = after(BEGIN, StartFailed("No such file", 127))
    assert (attempt.phase, attempt.lived_seconds(9.0)) == (Phase.GONE, 0.0)
    assert judge(attempt.ending(None, cancelled=False))[0] is Outcome.FAILED


def test_a_shim_that_was_killed_before_it_could_tell() -> None:
    believed, asked = after(BEGIN, Started(7), Swept(), Believed(7, 768, ""))
    assert believed.phase is Phase.GONE
    assert asked[-1] == LookForOom()
    assert judge(believed.ending(None, cancelled=False))[0] is Outcome.FAILED
    vanished, _ = after(Vanished(), Swept())
    assert judge(vanished.ending("CRASHED", cancelled=False))[0] is Outcome.CRASHED
    never, _ = after(BEGIN, Swept())
    assert judge(never.ending(None, cancelled=False))[0] is Outcome.LOST_CLAIM


def test_processes_that_cannot_be_killed_are_known_until_they_are_gone() -> None:
    attempt, _ = after(BEGIN, Started(7), CannotKill((7, 8)))
    assert attempt.stuck == (7, 8)
    assert after(Swept(), start=attempt)[0].stuck == ()


def test_an_event_that_the_phase_does_not_allow_tells_the_whole_story() -> None:
    attempt, _ = after(BEGIN, Started(7))
    with pytest.raises(IllegalEventError) as caught:
        step(attempt, BEGIN, 9.0)
    assert str(caught.value).endswith("in phase running; before: Begin (held), Started (starting)")
    many = after(*[Hurry(1.0)] * (STORY_LENGTH + 5), start=attempt)[0]
    assert len(many.story) == STORY_LENGTH


@pytest.mark.parametrize(
    ("status", "found"), [(None, (None, None)), (0, (0, None)), (768, (3, None)), (9, (None, 9)),
                          (139, (None, 11))]
)  # fmt: skip
def test_a_wait_status_is_read_as_wait_says(status: int | None, found: tuple[Any, Any]) -> None:
    assert exit_of(status) == found  # 139: signal 11 with a core dump


# --- promises -------------------------------------------------------------------------------------
seconds = st.floats(0.0, 100.0)
events = st.one_of(
    st.sampled_from(SAMPLES),
    st.builds(Preempt, st.sampled_from([TERM, USR1]), seconds),
    st.builds(Hurry, seconds),
    st.builds(Signal, st.just(USR1), st.booleans()),
)


def graceful(asked: list[Action]) -> list[Action]:
    """The signals because of which it is to end."""
    return [a for a in asked if isinstance(a, Tell) and getattr(a.message, "preempt", False)]


@given(st.booleans(), st.lists(st.tuples(events, seconds), max_size=40))
def test_what_holds_in_every_sequence(by_workers: bool, happens: list[tuple[Event, float]]) -> None:
    attempt, asked, now = Attempt(by_workers=by_workers), [], 0.0
    for event, pause in happens:
        now += pause
        if attempt.phase not in TABLE[type(event)][0]:
            continue
        before = attempt
        attempt, actions = step(attempt, event, now)
        asked += actions
        assert attempt.phase.order >= before.phase.order, "the phase never goes back"
        deadlines = (attempt.kill_at or 0.0, before.kill_at)
        assert deadlines[1] is None or deadlines[0] <= deadlines[1], "nor does a deadline"
        for flag in ("preempted", "fenced", "oom"):
            assert getattr(attempt, flag) >= getattr(before, flag), f"{flag} stays"
        if before.phase is Phase.HELD and attempt.phase is Phase.HELD:
            assert actions == [], "nothing is asked for before there is a shim to be told"
        if before.phase is Phase.GONE:
            assert set(actions) <= {LookForOom()}, "nor after the tree is gone"
        assert before.status is None or attempt.status is not None, "an end stays known"
    assert len(graceful(asked)) <= 1, "one graceful signal at most"
    assert sum(isinstance(a, AskWorkers) for a in asked) <= 1
    if graceful(asked):
        assert MarkClosing() in asked, "other claims wait for one that was asked to end"
    assert asked.count(Tell(GO)) <= 1, "it is started once at most"
    judge(attempt.ending(None, cancelled=False))


def test_the_flags_that_the_outcome_needs_are_passed_on() -> None:
    attempt = replace(
        Attempt(), pid=1, status=9, preempted=True, killed=True, fenced=True, oom=True
    )
    ending = attempt.ending("RUNNING", cancelled=True)
    assert (ending.preempted, ending.killed, ending.fenced, ending.oom, ending.cancelled) == (
        True, True, True, True, True,
    )  # fmt: skip
    assert (ending.server_state, ending.signal, ending.started) == ("RUNNING", 9, True)
