"""Prints the end of the demo: the table, then each check with its mark.

Owns the layout, of 80 columns, and the JSON form of the same.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from facts import Facts
from rich.console import Console
from rich.table import Table
from rich.text import Text
from verdict import Check


def print_report(console: Console, facts: Facts, results: Sequence[Check]) -> None:
    """The table and the checks."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value, note in _rows(facts):
        table.add_row(label, value, Text(note, "dim"))
    console.print()
    console.print(table)
    console.print()
    utf = console.encoding.startswith("utf")
    for check in results:
        mark, style = (
            ("✓" if utf else "ok", "green") if check.passed else ("✗" if utf else "NO", "red")
        )
        console.print(Text.assemble((f"{mark} ", style), check.name))
        if not check.passed and check.detail:
            console.print(Text(f"    {check.detail}", "red"))
    passed = sum(check.passed for check in results)
    good = passed == len(results)
    console.print()
    console.print(Text(
        f"{passed} of {len(results)} checks passed, in {facts.seconds:.0f} s.",
        "bold green" if good else "bold red",
    ))  # fmt: skip


def _rows(facts: Facts) -> list[tuple[str, str, str]]:
    rows = [
        ("runs", facts.runs, ""),
        ("finished", facts.finished, ""),
        ("preempted", facts.preempted, "by node a's SIGTERM: saved, exit code 143"),
        ("resumed", facts.resumed, f"{facts.resumed_elsewhere} preempted runs by the other node"),
        ("killed by us", int(bool(facts.killed)), _fate(facts)),
        ("handed out twice", facts.duplicates, "by the server, to a second agent"),
        ("claims dropped", facts.dropped, "because another process has or had the run"),
        ("trained twice at once", len(facts.overlaps), "according to the training processes"),
        ("orphans", len(facts.orphans), "processes left after their daemon ended"),
        ("steps lost", facts.steps_lost, "repeated after a missed checkpoint"),
        (
            "not on W&B",
            facts.killed_steps_unsent,
            "steps of the killed run that wandb had not sent",
        ),
    ]
    return [(label, str(value), note) for label, value, note in rows] + _gap_rows(facts)


def _gap_rows(facts: Facts) -> list[tuple[str, str, str]]:
    """From the end of a run's last process to the start of the next training on its slot."""
    if not facts.gaps:
        return []
    gap, claim = statistics.median(facts.gaps), statistics.median(facts.claims)
    cold = f"; without {facts.cold_starts} cold starts" if facts.cold_starts else ""
    counted = f"median of {len(facts.gaps)}, max {max(facts.gaps):.2f} s{cold}"
    return [
        ("gap on a slot", f"{gap:.2f} s", "from the last process to the next training:"),
        ("", "", counted),
        ("  until its lease", f"{claim:.2f} s", "the coordinator's part; the rest is wandb's"),
    ]


def _fate(facts: Facts) -> str:
    if not facts.killed:
        return "the demo ended before"
    return f"at step {facts.killed_step}: {facts.killed_outcome}, then {facts.killed_state}"


def write_json(file: Path, facts: Facts, results: Sequence[Check]) -> None:
    """The same for programs."""
    data = {
        "passed": all(check.passed for check in results),
        "facts": asdict(facts),
        "checks": [asdict(check) for check in results],
    }
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
