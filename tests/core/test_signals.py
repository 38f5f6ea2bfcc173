"""Our table of signals is that of this platform, and people may write a signal in many ways."""

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.signals import NAMES, NUMBERS, signal_name, signal_number


def test_names_and_numbers_are_those_of_this_platform() -> None:
    standard = {s.name: s.value for s in signal.Signals if s.value < signal.SIGRTMIN}
    assert standard == NUMBERS


def test_every_standard_signal_of_the_kernel_has_a_name() -> None:
    assert set(NAMES) == {s for s in signal.valid_signals() if s < signal.SIGRTMIN}


@pytest.mark.parametrize("text", ["TERM", "term", "SIGTERM", "sigterm", " SigTerm ", "15"])
def test_a_signal_may_be_written_in_every_common_way(text: str) -> None:
    assert signal_number(text) == signal.SIGTERM


@pytest.mark.parametrize("text", ["", "0", "-15", "99", "NOPE", "SIG", "SIGSIGTERM", "1.0"])
def test_an_unknown_signal_is_refused_with_the_list_of_those_that_are_known(text: str) -> None:
    with pytest.raises(ValueError, match="unknown signal") as caught:
        signal_number(text)
    assert "TERM" in str(caught.value)
    assert repr(text) in str(caught.value)


@given(st.sampled_from(sorted(NUMBERS)))
@settings(deadline=None)
def test_name_and_number_lead_to_each_other(name: str) -> None:
    assert signal_name(signal_number(name)) == name
    assert signal_number(str(NUMBERS[name])) == NUMBERS[name]


def test_a_signal_without_a_name_is_shown_by_its_number() -> None:
    assert signal_name(34) == "SIG34"
