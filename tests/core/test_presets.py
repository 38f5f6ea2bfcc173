"""Each preset names every notice and a real target; what a person says beats it, entry by entry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.presets import GRACEFUL_SIGNALS, PRESETS, Preset, Target, asking
from coordinator.core.signals import NUMBERS
from tests.docs.blocks import table

SIGNALS = st.dictionaries(st.sampled_from(GRACEFUL_SIGNALS), st.sampled_from(sorted(NUMBERS)))


@pytest.mark.parametrize("preset", Preset)
def test_a_preset_maps_every_notice_to_a_signal_that_can_be_caught(preset: Preset) -> None:
    known = PRESETS[preset]
    assert set(known.signals) == set(GRACEFUL_SIGNALS)
    assert set(known.signals.values()) <= set(GRACEFUL_SIGNALS)
    assert known.target is not Target.PRESET


def test_plain_python_gets_what_came_in() -> None:
    assert all(name == out for name, out in PRESETS[Preset.PYTHON].signals.items())


def test_a_launcher_never_gets_a_signal_that_it_dies_of() -> None:
    """torchrun dies of USR1 and USR2, Lightning loses the run on TERM and re-queues on USR1."""
    assert set(PRESETS[Preset.TORCHRUN].signals.values()) == {"SIGTERM"}
    assert set(PRESETS[Preset.LIGHTNING].signals.values()) == {"SIGUSR2"}
    for preset in (Preset.ACCELERATE, Preset.DEEPSPEED):
        assert PRESETS[preset].target is Target.WORKERS


@given(st.sampled_from(Preset), SIGNALS, st.sampled_from(Target))
def test_settings_override_the_preset_and_the_rest_stays(
    preset: Preset, signals: dict[str, str], target: Target
) -> None:
    known, found = PRESETS[preset], asking(preset, signals, target)
    for name in GRACEFUL_SIGNALS:
        assert found.signals[name] == signals.get(name, known.signals[name])
    assert found.target is (known.target if target is Target.PRESET else target)
    assert found.save_seconds in {None, known.save_seconds}


def test_only_a_launcher_that_is_signalled_itself_has_a_limit() -> None:
    assert asking(Preset.TORCHRUN, {}, Target.PRESET).save_seconds == 30.0
    assert asking(Preset.TORCHRUN, {}, Target.WORKERS).save_seconds is None
    assert asking(Preset.PYTHON, {}, Target.PRESET).save_seconds is None


def test_the_documented_table_is_the_table() -> None:
    rows = table("training.md", "preset", "signal for trainings", "who gets it", "time to save")
    assert [row[0].strip("`") for row in rows] == list(Preset)
    for name, signal, target, seconds in rows:
        known = PRESETS[Preset(name.strip("`"))]
        outgoing = set(known.signals.values())
        assert signal == ("the received signal" if len(outgoing) > 1 else outgoing.pop())
        assert (target == "each worker") is (known.target is Target.WORKERS)
        assert (seconds == "30 s at most") is (known.save_seconds == 30.0)
