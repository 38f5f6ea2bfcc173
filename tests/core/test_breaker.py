"""Breakers as a table: every state with every sign, and what endings say."""

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.breaker import (
    TABLE,
    Breaker,
    BreakerState,
    Life,
    Rules,
    Sign,
    Step,
    Verdict,
    cooldown_seconds,
    is_to_blame,
    step,
    strikes_run,
    verdict,
)
from coordinator.core.model import CommandKind, Outcome

RULES = Rules(failures=3, cooldown_seconds=30, max_cooldown_seconds=100, probe_seconds=60)
FAIL, SOUND, NEUTRAL, PROBE, TIME, RESET = (
    Sign.FAILURE, Sign.SOUND, Sign.NEUTRAL, Sign.PROBE, Sign.TIME, Sign.RESET
)  # fmt: skip
CLOSED, OPEN, HALF = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def after(*signs: tuple[Sign, str, float], rules: Rules = RULES) -> Breaker:
    """A new breaker after these signs, each of somebody at a time."""
    breaker = Breaker()
    for sign, who, now in signs:
        breaker = step(breaker, Step(sign, who, f"run-{who}", "why"), now, rules)
    return breaker


FAILED = tuple((FAIL, str(n), float(n)) for n in range(3))
HALF_OPEN = (*FAILED, (TIME, "", 32.0))
PROBED = (*HALF_OPEN, (PROBE, "7", 33.0))


def test_the_table_has_every_state_with_every_sign() -> None:
    assert set(TABLE) == set(product(BreakerState, Sign))


@pytest.mark.parametrize(
    ("signs", "state"),
    [
        ([], CLOSED),
        (FAILED[:2], CLOSED),
        (FAILED, OPEN),
        ([*FAILED[:2], (SOUND, "9", 2.0), *FAILED[:2]], CLOSED),
        ([*FAILED[:2], (NEUTRAL, "9", 2.0), FAILED[2]], OPEN),
        ([*FAILED, (TIME, "", 31.9)], OPEN),
        ([*FAILED, (SOUND, "0", 5.0)], OPEN),
        ([*FAILED, (PROBE, "0", 5.0)], OPEN),
        ([*FAILED, (RESET, "", 5.0)], CLOSED),
        (HALF_OPEN, HALF),
        ([*HALF_OPEN, (RESET, "", 33.0)], CLOSED),
        ([*PROBED, (SOUND, "7", 40.0)], CLOSED),
        ([*PROBED, (FAIL, "7", 40.0)], OPEN),
        ([*PROBED, (SOUND, "1", 40.0)], HALF),
        ([*PROBED, (FAIL, "1", 40.0)], HALF),
        ([*PROBED, (NEUTRAL, "7", 40.0)], HALF),
    ],
)
def test_signs_lead_to_states(signs: list[tuple[Sign, str, float]], state: BreakerState) -> None:
    assert after(*signs).state is state


@pytest.mark.parametrize(
    ("breaker", "who", "now", "admitted"),
    [
        (Breaker(), "1", 0.0, True),
        (after(*FAILED), "1", 1000.0, False),
        (after(*HALF_OPEN), "1", 33.0, True),
        (after(*PROBED), "7", 34.0, True),
        (after(*PROBED), "1", 34.0, False),
        (after(*PROBED), "1", 33.0 + 60, True),
        (after(*PROBED, (NEUTRAL, "7", 40.0)), "1", 41.0, True),
    ],
)
def test_one_probe_passes_a_half_open_breaker(
    breaker: Breaker, who: str, now: float, admitted: bool
) -> None:
    assert breaker.admits(who, now) is admitted


def test_the_probe_is_the_first_who_asks_until_nothing_was_heard_of_it_for_too_long() -> None:
    probed = after(*PROBED)
    assert step(probed, Step(PROBE, "8"), 34.0, RULES) == probed
    assert step(probed, Step(PROBE, "8"), 93.0, RULES).prober == "8"


def test_each_failed_probe_doubles_the_cool_down_up_to_its_ceiling() -> None:
    assert [cooldown_seconds(trips, RULES) for trips in range(4)] == [30, 60, 100, 100]
    again = after(*PROBED, (FAIL, "7", 40.0))
    assert (again.trips, again.retry_at) == (2, 100.0)
    closed = step(step(again, Step(TIME), 100.0, RULES), Step(PROBE, "7"), 101.0, RULES)
    assert step(closed, Step(SOUND, "7"), 102.0, RULES) == Breaker()


def test_one_bad_node_alone_never_stops_a_sweep() -> None:
    rules = Rules(4, 30, 100, 60, per_label=2)
    bad = tuple((FAIL, "bad", float(n)) for n in range(50))
    assert after(*bad, rules=rules).state is CLOSED
    assert after(*bad, (FAIL, "b", 51.0), (FAIL, "c", 52.0), rules=rules).state is OPEN


def test_a_breaker_crosses_redis() -> None:
    for breaker in (Breaker(), after(*FAILED), after(*PROBED)):
        assert msgspec.json.decode(msgspec.json.encode(breaker), type=Breaker) == breaker


SIGNS = st.tuples(st.sampled_from(Sign), st.sampled_from(["1", "2", "3"]), st.floats(0, 50))


@given(st.lists(SIGNS, max_size=60))
def test_whatever_happens_a_breaker_opens_only_on_failures_in_a_row_and_always_has_a_way_back(
    signs: list[tuple[Sign, str, float]],
) -> None:
    breaker, now, row = Breaker(), 0.0, 0
    for sign, who, pause in signs:
        now += pause
        before, breaker = breaker, step(breaker, Step(sign, who, who, "why"), now, RULES)
        row = row + 1 if sign is FAIL else 0 if sign in {SOUND, RESET} else row
        if before.state is CLOSED and breaker.state is OPEN:
            assert row >= RULES.failures
        if breaker.state is HALF:
            assert sum(breaker.admits(slot, now) for slot in "123") in {1, 3}
        assert breaker.admits("1", now) or breaker.state is not CLOSED
    back = step(breaker, Step(TIME), now + 100, RULES)
    back = step(back, Step(PROBE, "9"), now + 100, RULES)
    if breaker.state is not CLOSED and breaker.prober == "":
        assert step(back, Step(SOUND, "9"), now + 101, RULES).state is CLOSED


# --- what an ending says --------------------------------------------------------------------------
def life(
    outcome: Outcome,
    lived: float | None = 100.0,
    state: str | None = "FAILED",
    *,
    asked: bool = True,
    ordered: bool = False,
) -> Life:
    return Life(outcome, lived, asked, state, ordered)


@pytest.mark.parametrize(
    ("ended", "found"),
    [
        (life(Outcome.FINISHED, 0.1), Verdict.SOUND),
        (life(Outcome.PREEMPT_LOST), Verdict.SOUND),
        (life(Outcome.FAILED, 100.0, None), Verdict.FAILURE),
        (life(Outcome.FAILED, 100.0, "PENDING"), Verdict.FAILURE),
        (life(Outcome.CRASHED, 2.9), Verdict.FAILURE),
        (life(Outcome.OOM, 2.9), Verdict.FAILURE),
        (life(Outcome.LOST_CLAIM, None), Verdict.FAILURE),
        (life(Outcome.PREEMPTED, 1.0, "PREEMPTED"), Verdict.FAILURE),
        (life(Outcome.FAILED, 3.0), Verdict.SOUND),
        (life(Outcome.CRASHED, 3600.0, "RUNNING"), Verdict.SOUND),
        (life(Outcome.PREEMPTED, 100.0, "PREEMPTED"), Verdict.SOUND),
        (life(Outcome.FAILED, None, None, asked=False), Verdict.SOUND),
        (life(Outcome.INTERRUPTED, 1.0), Verdict.NEUTRAL),
        (life(Outcome.CANCELLED, 1.0), Verdict.NEUTRAL),
        (life(Outcome.FENCED, 1.0), Verdict.NEUTRAL),
        (life(Outcome.PREEMPTED, 1.0, "PREEMPTED", ordered=True), Verdict.NEUTRAL),
        (life(Outcome.FAILED, 1.0, None, ordered=True), Verdict.NEUTRAL),
    ],
)
def test_endings_say_of_their_place(ended: Life, found: Verdict) -> None:
    assert verdict(ended, early_seconds=3.0)[0] is found


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_says_something(outcome: Outcome) -> None:
    assert verdict(life(outcome), early_seconds=3.0)[1]


@pytest.mark.parametrize(
    ("ended", "kind", "struck"),
    [
        (life(Outcome.FAILED), CommandKind.RUN, Verdict.NEUTRAL),
        (life(Outcome.FAILED), CommandKind.RESUME, Verdict.FAILURE),
        (life(Outcome.CRASHED, 9999.0), CommandKind.RESUME, Verdict.FAILURE),
        (life(Outcome.PREEMPTED, 1.0, "PREEMPTED"), CommandKind.RESUME, Verdict.FAILURE),
        (life(Outcome.PREEMPTED, 3600.0, "PREEMPTED"), CommandKind.RESUME, Verdict.SOUND),
        (life(Outcome.FINISHED), CommandKind.RESUME, Verdict.SOUND),
        (life(Outcome.PREEMPTED, 1.0, ordered=True), CommandKind.RESUME, Verdict.NEUTRAL),
        (life(Outcome.INTERRUPTED), CommandKind.RESUME, Verdict.NEUTRAL),
    ],
)
def test_endings_say_of_a_resumed_run(ended: Life, kind: CommandKind, struck: Verdict) -> None:
    assert strikes_run(ended, kind, verdict(ended, 3.0)[0]) is struck


def test_a_run_is_not_blamed_on_a_node_where_others_fail_too() -> None:
    assert is_to_blame("r", Breaker())
    assert is_to_blame("r", Breaker(streak=("r", "r")))
    assert not is_to_blame("r", Breaker(streak=("r", "other")))
    assert not is_to_blame("r", after(*FAILED))
