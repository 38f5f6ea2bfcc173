"""Values on their way out: a value with the name of its GraphQL type, and pages of them.

Owns the vocabulary that `schema`, `run_fields` and `mutations` share with the executor. Holds no
field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.emulator.records import Now
    from coordinator.emulator.state import Backend

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Context:
    """What a resolver may use: the backend, the present, and the address that the client used."""

    backend: Backend
    now: Now
    base_url: str
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Typed:
    """A value with the name of its GraphQL type."""

    type_name: str
    value: Any


Resolver = Callable[[Context, Any, Arguments], object]


def connection(nodes: Sequence[Any], args: Arguments) -> Mapping[str, Any]:
    """A page of nodes; the cursor is the position, written as text."""
    start = int(args.get("after") or 0)
    first = args.get("first")
    page = nodes[start:] if first is None else nodes[start : start + int(first)]
    end = start + len(page)
    return {
        "__typename": "Connection",
        "totalCount": len(nodes),
        "edges": [
            {"__typename": "Edge", "node": node, "cursor": str(start + index + 1)}
            for index, node in enumerate(page)
        ],
        "pageInfo": {
            "__typename": "PageInfo",
            "endCursor": str(end) if page else None,
            "hasNextPage": end < len(nodes),
        },
    }
