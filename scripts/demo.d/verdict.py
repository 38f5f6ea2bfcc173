"""Judges the facts; the only place that says good or bad.

Owns the checks. The demo is a success when all of them pass.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from facts import Facts
from play import Story

GAP_LIMIT_SECONDS = 4.0
"""For the median: one long-lived `wandb agent` needs 4.2 s on an idle machine. A busy machine makes
all of it slower, so the bound is not what is usual here; the table shows that."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so."""

    name: str
    passed: bool
    detail: str = ""


def checks(facts: Facts, story: Story) -> list[Check]:
    """Everything that must be so."""
    return [
        _all_ended(facts),
        _killed(facts),
        *_preempted(facts, story),
        *_handed_out(facts),
        Check("no process was left behind", not facts.orphans, _list(facts.orphans)),
        _gaps(facts),
        Check(
            "both daemons exited by themselves when no work was left",
            facts.exit_codes.get("a", [])[1:] == [0] and facts.exit_codes.get("b") == [0],
            f"exit codes {facts.exit_codes}",
        ),
    ]


def _all_ended(facts: Facts) -> Check:
    return Check(
        f"every run has finished: {facts.finished} of {facts.runs}",
        facts.finished == facts.runs,
        _list(f"{run} is {state}" for run, state in facts.unfinished.items()),
    )


def _killed(facts: Facts) -> Check:
    return Check(
        "the killed run was recorded as crashed and trained again (rescue)",
        facts.killed_outcome == "crashed" and facts.killed_state == "finished",
        f"outcome {facts.killed_outcome or 'none'}, on the server {facts.killed_state or 'none'}",
    )


def _preempted(facts: Facts, story: Story) -> list[Check]:
    asked = len(story.preempted)
    return [
        Check(
            f"node a gave up its {asked} runs in {facts.preempt_seconds:.1f} s, exit code 75",
            facts.exit_codes.get("a", [])[:1] == [75] and facts.preempted == asked > 0,
            f"{facts.preempted} preempted, exit codes {facts.exit_codes}",
        ),
        Check(
            "each of these runs continued once, at least one on the other node",
            facts.resumed == asked + bool(facts.killed) and facts.resumed_elsewhere >= 1,
            f"resumed {facts.resumed} times, {facts.resumed_elsewhere} on the other node",
        ),
        Check(
            "no step was done twice, and W&B has each once, except what the kill cut off",
            facts.steps_lost == 0 and not facts.broken_histories,
            f"{facts.steps_lost} done twice; wrong histories: {_list(facts.broken_histories)}",
        ),
    ]


def _handed_out(facts: Facts) -> list[Check]:
    return [
        Check(
            "the server handed out runs twice, as W&B can",
            facts.duplicates > 0,
            "it did not, so this demo proves little: run it again",
        ),
        Check(
            "no run was trained by two processes at once",
            not facts.overlaps,
            _list(f"{run} for {seconds} s" for run, seconds in facts.overlaps),
        ),
        Check(
            "no run was trained again needlessly",
            facts.trained_again == 0,
            f"{facts.trained_again} extra training processes",
        ),
    ]


def _gaps(facts: Facts) -> Check:
    median = statistics.median(facts.gaps) if facts.gaps else None
    return Check(
        f"a freed slot trains again sooner than with a plain agent ({GAP_LIMIT_SECONDS:g} s)",
        median is not None and median < GAP_LIMIT_SECONDS,
        "nothing to measure" if median is None else f"{median:.2f} s",
    )


def _list(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"
