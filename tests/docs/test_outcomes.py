"""docs/outcomes.md has the table of `core.outcome` and a section for each outcome."""

import re

import pytest

from coordinator.core.model import Outcome
from coordinator.core.outcome import TABLE, Ending, judge
from tests.docs.blocks import DOCS, table

TEXT = (DOCS / "outcomes.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n\n((?:(?!^#).*\n)*)", TEXT, re.MULTILINE))
ROWS = table("outcomes.md", "", "cause", "applies when", "outcome")


def test_the_rows_are_the_rules_in_their_order() -> None:
    assert [(row[1], row[3].strip("`")) for row in ROWS] == [
        (cause, outcome.value) for cause, _, outcome in TABLE
    ]
    assert [row[0] for row in ROWS] == [str(number + 1) for number in range(len(TABLE))]


def test_every_outcome_has_a_section_and_no_other_word_does() -> None:
    assert set(SECTIONS) == {outcome.value for outcome in Outcome}


@pytest.mark.parametrize("outcome", Outcome)
def test_a_section_says_what_w_and_b_shows_and_what_follows(outcome: Outcome) -> None:
    section = SECTIONS[outcome.value]
    if outcome is not Outcome.FENCED:
        assert re.search(r"FINISHED|FAILED|KILLED|CRASHED|PREEMPTED|shows it as", section)
    assert len(section.split()) > 20


def test_a_run_that_is_handed_out_again_is_preempted_and_no_other_section_says_so() -> None:
    texts = {name: " ".join(section.split()) for name, section in SECTIONS.items()}
    again = {name for name, text in texts.items() if "hands the run out again" in text}
    assert again == {"preempted", "preempt_lost"}
    assert "never hands the run out again" in texts["preempt_lost"]


def test_the_causes_are_those_that_an_ending_gets() -> None:
    shown = {row[1] for row in ROWS}
    for ending in (Ending(0, None), Ending(1, None), Ending(None, 9), Ending(None, None)):
        assert judge(ending)[1] in shown
