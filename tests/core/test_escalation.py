"""Repeated notices: what the first, the second and the third do, and what a storm is."""

from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.escalation import Escalation, Step

STORM_SECONDS = 2.0


def steps(*times: float, storm_seconds: float = STORM_SECONDS) -> list[Step]:
    """What notices at these times do."""
    escalation = Escalation(storm_seconds)
    found = []
    for now in times:
        escalation, step = escalation.notice(now)
        found.append(step)
    return found


def test_the_first_notice_asks_the_second_hurries_and_the_third_kills() -> None:
    assert steps(100.0, 110.0, 120.0) == [Step.ASK, Step.HURRY, Step.KILL]


def test_every_notice_after_the_third_kills_too() -> None:
    assert steps(100.0, 110.0, 120.0, 130.0, 140.0)[2:] == [Step.KILL] * 3


def test_the_storm_of_a_scheduler_counts_once() -> None:
    assert steps(100.0, 100.001, 100.2, 101.0) == [Step.ASK, *[Step.IGNORE] * 3]


def test_a_notice_counts_again_from_the_very_end_of_the_storm_on() -> None:
    assert steps(100.0, 101.999)[1] is Step.IGNORE
    assert steps(100.0, 102.0)[1] is Step.HURRY


def test_a_storm_lasts_as_long_as_its_notices_keep_coming() -> None:
    assert steps(100.0, 101.5, 103.0, 104.5) == [Step.ASK, *[Step.IGNORE] * 3]
    assert steps(100.0, 101.5, 103.5) == [Step.ASK, Step.IGNORE, Step.HURRY]


def test_the_second_and_the_third_notice_have_their_storms_too() -> None:
    times = (100.0, 110.0, 110.1, 120.0, 120.1)
    assert steps(*times) == [Step.ASK, Step.HURRY, Step.IGNORE, Step.KILL, Step.IGNORE]


def test_the_first_notice_counts_also_right_after_the_machine_has_started() -> None:
    assert steps(0.5) == [Step.ASK], "the monotonic clock begins at 0"


def test_without_a_storm_time_every_notice_counts() -> None:
    assert steps(1.0, 1.0, 1.0, storm_seconds=0.0) == [Step.ASK, Step.HURRY, Step.KILL]


def test_an_earlier_state_is_not_changed_by_a_notice() -> None:
    first = Escalation(STORM_SECONDS)
    first.notice(100.0)
    assert first.notice(100.5)[1] is Step.ASK


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=40), st.floats(0.0, 10.0))
def test_notices_that_count_are_at_least_a_storm_apart_and_grow_harder(
    gaps: list[float], storm_seconds: float
) -> None:
    times = list(accumulate(gaps))
    found = steps(*times, storm_seconds=storm_seconds)
    counted = [step for step in found if step is not Step.IGNORE]
    assert counted == [Step.ASK, Step.HURRY, *[Step.KILL] * len(gaps)][: len(counted)]
    for (earlier, later), step in zip(pairwise(times), found[1:], strict=True):
        assert (step is Step.IGNORE) == (later - earlier < storm_seconds)
