"""Plain tables: aligned columns, wrapped cells, color if the page supports it.

Owns the layout of cells. It must fit the width of the page as far as the columns allow, and every
text goes through `Page.text`, so that a daemon's answer is only text.
"""

from collections.abc import Iterable, Sequence

from coordinator.cli.terminal import Page

BOLD = "1"
DIM = "2"
RED = "31"
GREEN = "32"
YELLOW = "33"
CYAN = "36"

Cell = tuple[str, str]
"""Text and style."""
_GAP = "  "
_NARROWEST = 4
"""Minimum width of a column; on a narrower page the terminal wraps the lines."""


def cell(value: object, style: str = "") -> Cell:
    """A cell; None is shown as a dash."""
    return ("-" if value is None else str(value), style)


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]], page: Page) -> list[str]:
    """The lines of a table below its `header`."""
    return _lines([[(name, BOLD) for name in header], *rows], page)


def pairs(rows: Iterable[tuple[str, str]], page: Page) -> list[str]:
    """The lines of a list of labels and values."""
    return _lines([[(label, DIM), (value, "")] for label, value in rows], page)


def paragraph(text: str, style: str, page: Page, indent: str = "") -> list[str]:
    """The lines of one text; lines after the first are indented by the width of `indent`."""
    lines = fold(page.text(text), max(page.columns - len(indent), _NARROWEST))
    starts = [indent, *[" " * len(indent)] * (len(lines) - 1)]
    return [page.styled(start + line, style) for start, line in zip(starts, lines, strict=True)]


def fold(text: str, columns: int) -> list[str]:
    """`text` in lines of at most `columns`, broken at spaces if possible."""
    lines = []
    while size(text) > columns:
        end = _fitting(text, columns)
        blank = text.rfind(" ", 1, end + 1)
        if blank > 0:
            lines.append(text[:blank].rstrip())
            text = text[blank + 1 :]
        else:
            lines.append(text[:end])
            text = text[end:]
    return [*lines, text]


def size(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    return len(text) if text.isascii() else sum(map(_size_of_one, text))


def _size_of_one(character: str) -> int:
    import unicodedata  # noqa: PLC0415 - few need it

    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _fitting(text: str, columns: int) -> int:
    """How many characters of `text` fit into `columns`, at least one."""
    if text.isascii():
        return columns
    taken = 0
    for position, character in enumerate(text):
        taken += _size_of_one(character)
        if taken > columns:
            return max(position, 1)
    return len(text)


def _lines(rows: Sequence[Sequence[Cell]], page: Page) -> list[str]:
    shown = [[(page.text(text), style) for text, style in row] for row in rows]
    columns = zip(*([size(text) for text, _ in row] for row in shown), strict=True)
    widths = _fit([max(sizes) for sizes in columns], page.columns)
    return [line for row in shown for line in _row(row, widths, page)]


def _row(row: Sequence[Cell], widths: Sequence[int], page: Page) -> list[str]:
    folded = [fold(text, width) for (text, _), width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, folded))):
        parts = [part[number] if number < len(part) else "" for part in folded]
        padded = (
            page.styled(part, style) + " " * (width - size(part)) if part else " " * width
            for part, (_, style), width in zip(parts, row, widths, strict=True)
        )
        lines.append(_GAP.join(padded).rstrip())
    return lines


def _fit(wanted: Sequence[int], columns: int) -> list[int]:
    """Widths for columns of these sizes: the widest shrink until all fit."""
    widths = [max(1, min(want, max(columns, _NARROWEST))) for want in wanted]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - columns
    while excess > 0 and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
        excess -= 1
    return widths
