"""Pacing: bursts are free, storms are spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.pace import Pace


def test_a_burst_does_not_wait_and_what_follows_does() -> None:
    pace = Pace(per_second=2.0, burst=3)
    assert pace.ready(100.0) == 3
    pace = pace.took(3, 100.0)
    assert pace.ready(100.0) == 0
    assert pace.wait_seconds(100.0) == pytest.approx(0.5)
    assert pace.ready(100.5) == 1
    assert pace.wait_seconds(100.5) == pytest.approx(0.0)
    assert pace.ready(1000.0) == 3


def test_one_start_a_second_without_a_burst() -> None:
    pace = Pace(per_second=1.0, burst=1).took(1, 5.0)
    assert pace.wait_seconds(5.25) == pytest.approx(0.75)


@given(st.floats(0.1, 100), st.integers(1, 50), st.lists(st.floats(0, 2), min_size=1, max_size=100))
def test_no_span_of_time_has_more_than_the_burst_and_its_share(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    pace, now, taken = Pace(per_second, burst), 1000.0, list[float]()
    for pause in pauses:
        now += pause
        for _ in range(pace.ready(now)):
            assert pace.wait_seconds(now) == pytest.approx(0.0, abs=1e-6)
            pace = pace.took(1, now)
            taken.append(now)
    for index, first in enumerate(taken):
        for count, last in enumerate(taken[index:], start=1):
            assert count <= burst + (last - first) * per_second + 1e-6 * count
