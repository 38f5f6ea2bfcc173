"""The table of a play.

Owns the words for people; the exit code is the interface.
"""

from tests.nemesis.judge import longest
from tests.nemesis.verdict import Result, Row

HEAD = ("fault", "grants", "utilisation", "overlaps", "longest overlap", "lost runs")


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width, the first to the left and the others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)


def cells(row: Row) -> tuple[str, ...]:
    """One row as text."""
    return (
        row.fault,
        str(len(row.stays)),
        f"{100 * row.utilisation:.0f} %",
        str(len(row.overlaps)),
        f"{longest(row.overlaps):.3f} s" if row.overlaps else "-",
        str(row.lost),
    )


def total(rows: list[Row]) -> tuple[str, ...]:
    """The last line of the table."""
    found = [pair for row in rows for pair in row.overlaps]
    seconds = sum(row.ended - row.began for row in rows)
    used = sum(row.utilisation * (row.ended - row.began) for row in rows)
    return (
        "total",
        str(sum(len(row.stays) for row in rows)),
        f"{100 * used / seconds:.0f} %",
        str(len(found)),
        f"{longest(found):.3f} s" if found else "-",
        str(sum(row.lost for row in rows)),
    )


def report(result: Result, seed: int) -> str:
    """Everything that there is to say."""
    parts = [table([HEAD, *map(cells, result.rows), total(result.rows)])]
    parts.append(", ".join(f"{name} {count}" for name, count in result.facts.items()))
    parts.append(f"fences that did not grow: {len(result.fence_faults)}")
    if result.skipped:
        parts.append(f"left out: {result.skipped}")
    parts += [f"BROKEN: {words}" for words in result.broken]
    verdict = "every promise was kept" if not result.broken else "promises were broken"
    parts.append(f"{verdict}; seed {seed}")
    return "\n".join(parts)
