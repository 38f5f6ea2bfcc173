"""Durations in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli.durations import parse_duration, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("0", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172_800),
        (" 3S ", 3),
    ],
)
def test_what_people_write_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1m1h", "5 m", "1e9", "nan", "inf", "²", "m"])
def test_an_invalid_duration_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-5, "0s"), (12.9, "12s"), (192, "3m12s"), (3720, "1h02m"), (183_600, "2d03h")],
)
def test_durations_are_shown_in_two_units(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@given(st.integers(0, 10**7))
def test_what_is_shown_can_be_read_and_is_never_too_long(seconds: int) -> None:
    read = parse_duration(show_duration(seconds))
    assert read <= seconds
    assert seconds - read < 3600
