"""How a sweep is named, and what its states mean."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.model import SweepPath, SweepState

PATH = SweepPath("my-team", "vision", "a1b2c3d4")


@pytest.mark.parametrize(
    "text",
    [
        "my-team/vision/a1b2c3d4",
        " my-team/vision/a1b2c3d4\n",
        "my-team/vision/sweeps/a1b2c3d4",
        "https://wandb.ai/my-team/vision/sweeps/a1b2c3d4",
        "https://wandb.ai/my-team/vision/sweeps/a1b2c3d4/",
        "https://wandb.ai/my-team/vision/sweeps/a1b2c3d4?nw=nwuserbob",
        "https://wandb.ai/my-team/vision/sweeps/a1b2c3d4?workspace=user-bob#table",
        "http://wandb.example.com:8080/my-team/vision/sweeps/a1b2c3d4",
    ],
)
def test_a_sweep_is_named_by_its_path_or_by_the_address_of_its_page(text: str) -> None:
    assert SweepPath.parse(text) == PATH


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a1b2c3d4",
        "vision/a1b2c3d4",
        "my-team/vision/",
        "/vision/a1b2c3d4",
        "my-team//a1b2c3d4",
        "my-team/vision/a1b2 c3d4",
        "my team/vision/a1b2c3d4",
        "my-team/vision/runs/a1b2c3d4",
        "my-team/vision/a1b2c3d4/more",
        "my-team/vision/a1b2c3d4?nw=nwuserbob",
        "my-team/vision/../a1b2c3d4",
        "my-team/vision/a1b2c3d4\nmy-team/vision/b",
        "https://wandb.ai/my-team/vision",
        "https://wandb.ai/my-team/vision/runs/a1b2c3d4",
        "ftp://wandb.ai/my-team/vision/sweeps/a1b2c3d4",
        f"my-team/{'v' * 129}/a1b2c3d4",
    ],
)
def test_a_text_that_names_no_sweep_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="ENTITY/PROJECT/SWEEP_ID"):
        SweepPath.parse(text)


names = st.text("abcXYZ019-_.", min_size=1, max_size=20)


@settings(deadline=None)
@given(names, names, st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True))
def test_a_path_that_was_printed_is_read_back(entity: str, project: str, name: str) -> None:
    path = SweepPath(entity, project, name)
    assert SweepPath.parse(str(path)) == path


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_either_read_as_three_names_or_refused_on_one_line(text: str) -> None:
    try:
        words = str(SweepPath.parse(text))
    except ValueError as error:
        words = str(error)
    else:
        assert words.count("/") == 2
        assert words.split() == [words]
    assert "\n" not in words


@pytest.mark.parametrize("word", ["RUNNING", "running", "Running"])
def test_a_state_is_known_in_any_case(word: str) -> None:
    assert SweepState.of(word) is SweepState.RUNNING


def test_a_state_that_this_version_has_not_met_is_unknown_and_not_over() -> None:
    assert SweepState.of("HIBERNATING") is SweepState.UNKNOWN
    assert not SweepState.UNKNOWN.is_over


def test_a_sweep_is_over_when_the_server_hands_out_nothing_until_it_is_resumed() -> None:
    over = {state for state in SweepState if state.is_over}
    assert over == {
        SweepState.FINISHED,
        SweepState.STOPPED,
        SweepState.CANCELED,
        SweepState.FAILED,
    }
