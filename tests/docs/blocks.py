"""The code blocks of a page that are marked for a test: `<!-- WHAT: NAME -->` on the line before.

Owns the marks. A block without one is for reading only.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(
    r"^<!-- (?P<what>\w+)(?:: (?P<name>[\w.]+))? -->\n```\w*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def blocks(page: str, what: str) -> dict[str, str]:
    """The marked blocks of docs/`page` by name, or by number when they have none."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [match for match in _BLOCK.finditer(text) if match["what"] == what]
    assert found, f"docs/{page} has no block marked {what}"
    return {match["name"] or str(number): match["code"] for number, match in enumerate(found)}


def table(page: str, *header: str) -> list[list[str]]:
    """The cells of every table of docs/`page` that has this header, row by row."""
    rows: list[list[str]] = []
    inside = False
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells == list(header):
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= set("-: "):
            rows.append(cells)
    return rows
