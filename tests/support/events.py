"""docs/events.md as data, and the check that events which were really emitted keep to it.

Owns the reading of that page. A test that has run a daemon calls `check_events` with what the
daemon wrote.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "events.md"
HEAD: Final = {"ts": "text", "event": "text", "level": "text", "node": "text"}
"""The fields that every event has, in their order, with their types."""
TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "list": list,
    "object": dict,
    "null": type(None),
}
_HEADER: Final = ["event", "level", "fields", "meaning"]


@dataclass(frozen=True, slots=True)
class Documented:
    """One event as the page has it."""

    name: str
    levels: frozenset[str]
    required: frozenset[str]
    optional: frozenset[str]
    area: str

    @property
    def fields(self) -> frozenset[str]:
        """Everything that it may carry besides the head."""
        return self.required | self.optional


def documented_events() -> dict[str, Documented]:
    """Every event of the page by name; a name that stands there twice is an error."""
    found: dict[str, Documented] = {}
    for area, row in _rows(_HEADER):
        name, levels, fields = row[0].strip("`"), row[1], row[2]
        assert name not in found, f"{name} stands twice in docs/events.md"
        optional = set(re.findall(r"`(\w+)`\?", fields))
        required = set(re.findall(r"`(\w+)`", fields)) - optional
        found[name] = Documented(
            name,
            frozenset(re.findall(r"\w+", levels)),
            frozenset(required),
            frozenset(optional),
            area,
        )
    return found


def documented_fields() -> dict[str, tuple[str, ...]]:
    """The glossary: each field with the names of its types."""
    return {
        row[0].strip("`"): tuple(row[1].split(" or "))
        for _, row in _rows(["field", "type", "meaning"])
    }


def check_events(events: Iterable[Mapping[str, Any]]) -> None:
    """Fail, naming all that is wrong, unless the page documents each of `events` as it is."""
    known, glossary = documented_events(), documented_fields()
    wrong = [
        f"{event.get('event')}: {problem}"
        for event in events
        for problem in _problems(event, known, glossary)
    ]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def _problems(
    event: Mapping[str, Any],
    known: Mapping[str, Documented],
    glossary: Mapping[str, tuple[str, ...]],
) -> list[str]:
    problems = []
    if list(event)[: len(HEAD)] != list(HEAD):
        problems.append(f"does not begin with {', '.join(HEAD)}")
    if not TIMESTAMP.fullmatch(str(event.get("ts"))):
        problems.append(f"ts is {event.get('ts')!r}")
    page = known.get(str(event.get("event")))
    if page is None:
        return [*problems, "is not in docs/events.md"]
    if event.get("level") not in page.levels:
        problems.append(f"level {event.get('level')!r} is not one of {sorted(page.levels)}")
    carried = set(event) - set(HEAD)
    problems += [f"field {name} is not documented" for name in sorted(carried - page.fields)]
    problems += [f"field {name} is missing" for name in sorted(page.required - carried)]
    for name in sorted(carried & page.fields):
        types = glossary.get(name, ())
        if not any(_is(event[name], kind) for kind in types):
            problems.append(f"field {name} is {event[name]!r}, not {' or '.join(types)}")
    return problems


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])


def _rows(header: list[str]) -> list[tuple[str, list[str]]]:
    """The rows of all tables with this header, each with the title of its section."""
    rows: list[tuple[str, list[str]]] = []
    area, inside = "", False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            area = line.strip("# ")
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells == header:
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            rows.append((area, cells))
    return rows
