"""The filters and orders of `wandb.Api().runs()`: a small part of MongoDB's query language.

Owns how a filter's keys map onto a run. Pure: a run and a filter in, a verdict out. It must never
fail on a filter that it does not know: such a filter matches nothing.
"""

from __future__ import annotations

import json
import operator
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from coordinator.emulator.records import Run

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
    "$in": lambda value, wanted: value in wanted,
    "$nin": lambda value, wanted: value not in wanted,
    "$regex": lambda value, wanted: re.search(wanted, str(value)) is not None,
    "$exists": lambda value, wanted: (value is not None) is bool(wanted),
}

_OWN: Final[dict[str, Callable[[Run], Any]]] = {
    "sweep": lambda run: run.sweep_id,
    "state": lambda run: run.shown_state,
    "name": lambda run: run.run_id,
    "display_name": lambda run: run.attributes.get("displayName") or run.run_id,
    "displayName": lambda run: run.attributes.get("displayName") or run.run_id,
    "created_at": lambda run: run.created.wall,
    "createdAt": lambda run: run.created.wall,
    "heartbeat_at": lambda run: (run.posted or run.created).wall,
    "heartbeatAt": lambda run: (run.posted or run.created).wall,
}


def select(runs: Iterable[Run], filters: str | None, order: str | None) -> list[Run]:
    """The runs that a JSON filter lets through, in the order asked for."""
    wanted = json.loads(filters) if filters else {}
    chosen = [run for run in runs if run.visible and matches(run, wanted)]
    for key in reversed((order or "").split(",")):
        if key:
            name = key.lstrip("+-")
            chosen.sort(key=lambda run: _sortable(_value(run, name)), reverse=key.startswith("-"))
    return chosen


def matches(run: Run, filters: Mapping[str, Any]) -> bool:
    """Whether a run passes all clauses of a filter."""
    return all(_clause(run, key, wanted) for key, wanted in filters.items())


def _clause(run: Run, key: str, wanted: Any) -> bool:
    if key == "$and":
        return all(matches(run, part) for part in wanted)
    if key == "$or":
        return any(matches(run, part) for part in wanted)
    if key == "$not":
        return not matches(run, wanted)
    value = _value(run, key)
    if isinstance(wanted, dict) and any(name.startswith("$") for name in wanted):
        return all(_compare(value, name, operand) for name, operand in wanted.items())
    return bool(value == wanted) or (isinstance(value, list) and wanted in value)


def _compare(value: Any, name: str, operand: Any) -> bool:
    try:
        return _COMPARISONS[name](value, operand)
    except (KeyError, TypeError):
        return False


def _value(run: Run, key: str) -> Any:
    name, *path = key.split(".")
    if name == "config":
        return _inside(run.config, path)
    if name in {"summary_metrics", "summaryMetrics", "summary"}:
        return _inside(run.summary, path)
    read = _OWN.get(name)
    return read(run) if read is not None else run.attributes.get(name)


def _inside(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return value if name == "value" else None
        value = value.get(name)
    return value


def _sortable(value: Any) -> tuple[bool, str, Any]:
    return (value is None, type(value).__name__ if isinstance(value, str) else "", value or 0)
