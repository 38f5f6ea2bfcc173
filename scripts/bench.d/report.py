"""What a measurement hands over, and how it is printed.

Owns the table of a measurement, the summary of all of them, the progress lines and the JSON. It
must never measure. Tables go to stdout, progress to stderr, so that a table can be kept by itself.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from figures import ratio

if TYPE_CHECKING:
    import argparse

Cell = str | int | float | None
_LARGE, _MIDDLE, _SMALL = 100.0, 10.0, 0.1
_BEGAN = monotonic()


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the summary: ours against one other way; for both, less is better."""

    what: str
    unit: str
    ours: float
    other: str
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times ours theirs is."""
        return ratio(self.theirs, self.ours)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one measurement."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One subcommand."""

    name: str
    about: str
    """One line, for the list of measurements."""
    examples: str
    add_options: "Callable[[argparse.ArgumentParser], None]"
    measure: "Callable[[argparse.Namespace], Report]"
    short: Sequence[str]
    """The options of its smallest shape."""


def progress(words: str) -> None:
    """Say how far it is, with the seconds since the beginning."""
    print(f"{monotonic() - _BEGAN:7.0f} s  {words}", file=sys.stderr, flush=True)


def shown(cell: Cell) -> str:
    """A cell as it is printed; numbers with three digits that mean something."""
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return str(cell)
    size = abs(cell)
    digits = 0 if size >= _LARGE else 1 if size >= _MIDDLE else 2 if size >= _SMALL else 3
    return f"{cell:.{digits}f}"


def print_report(report: Report) -> None:
    """The table of one measurement, its notes below."""
    print(f"\n{report.name}: {report.title}\n")
    print_table(report.columns, report.rows)
    print()
    for note in report.notes:
        print(f"  {note}")
    sys.stdout.flush()


def print_summary(reports: Sequence[Report]) -> None:
    """One line for each comparison of all measurements; nothing when there is none."""
    if not reports:
        return
    columns = ["measurement", "what", "unit", "ours", "other way", "theirs", "theirs/ours"]
    rows: list[list[Cell]] = [
        [report.name, line.what, line.unit, line.ours, line.other, line.theirs, line.ratio]
        for report in reports
        for line in report.comparisons
    ]
    print("\nsummary; a ratio above 1 means that ours is the faster or smaller one\n")
    print_table(columns, rows)
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Words to the left, numbers to the right."""
    texts = [[shown(cell) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        words = any(isinstance(row[number], str) for row in rows)
        width = max(len(column), *(len(text[number]) for text in texts), 0)
        for text in texts:
            text[number] = text[number].ljust(width) if words else text[number].rjust(width)
        columns = [*columns[:number], column.ljust(width) if words else column.rjust(width),
                   *columns[number + 1:]]  # fmt: skip
    for text in [list(columns), *texts]:
        print("  " + "  ".join(text).rstrip())


def as_document(report: Report) -> dict[str, Any]:
    """The same for programs."""
    return {
        "name": report.name,
        "title": report.title,
        "rows": [dict(zip(report.columns, row, strict=True)) for row in report.rows],
        "notes": report.notes,
        "comparisons": [
            {
                "what": line.what,
                "unit": line.unit,
                "ours": line.ours,
                "other": line.other,
                "theirs": line.theirs,
                "ratio": line.ratio if line.ours else None,
            }
            for line in report.comparisons
        ],
    }
