"""Answers one GraphQL request: reads the document, walks its selection, asks the schema for values.

Owns execution only: aliases, fragments, variables, `@include`/`@skip`, introspection of field
names. What a field means is `schema`'s. An operation that the schema does not know is never
guessed at: it gets a GraphQL error and is counted as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from coordinator.emulator.document import (
    Document,
    DocumentError,
    Field,
    Operation,
    Selected,
    Spread,
    Variable,
    parse,
)
from coordinator.emulator.schema import TYPES
from coordinator.emulator.typed import Context, Typed

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOTS: Final = {"query": "Query", "mutation": "Mutation"}
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A document with its variables and the operation chosen from it."""

    document: Document
    operation: Operation
    variables: Mapping[str, Any]


@dataclass(slots=True)
class Answer:
    """The body of the answer, and what was asked for that we do not know."""

    body: dict[str, Any]
    unknown: list[str] = field(default_factory=list)


def read_request(body: Mapping[str, Any]) -> Request:
    """Read a request's body; raises `DocumentError` when there is nothing to execute."""
    document = parse(str(body.get("query") or ""))
    wanted = body.get("operationName")
    for operation in document.operations:
        if not wanted or operation.name == wanted:
            variables = {**dict(operation.defaults), **(body.get("variables") or {})}
            return Request(document, operation, variables)
    raise DocumentError("Must provide an operation.")


def execute(request: Request, context: Context) -> Answer:
    """Answer a request. Refusals by the backend are raised, not answered."""
    walk = _Walk(request, context)
    root = Typed(_ROOTS.get(request.operation.kind, "Query"), None)
    missing = [name for name in walk.root_fields() if name not in TYPES[root.type_name]]
    if missing:
        errors = [
            {"message": f'Cannot query field "{name}" on type "{root.type_name}".'}
            for name in missing
        ]
        return Answer({"errors": errors, "data": None}, unknown=missing)
    data = walk.project(root, request.operation.selection)
    return Answer({"data": data}, unknown=walk.unknown)


class _Walk:
    def __init__(self, request: Request, context: Context) -> None:
        self._request = request
        self._context = context
        self.unknown: list[str] = []

    def root_fields(self) -> list[str]:
        fields = self._fields(self._request.operation.selection)
        return [selected.name for selected in fields if not selected.name.startswith("__")]

    def project(self, value: object, selection: Sequence[Selected]) -> Any:
        """A value as the selection wants it."""
        if value is None:
            return None
        if isinstance(value, list | tuple):
            return [self.project(item, selection) for item in value]
        if isinstance(value, Typed | Mapping) and selection:
            fields = self._fields(selection)
            return {selected.key: self._field(value, selected) for selected in fields}
        return value.value if isinstance(value, Typed) else value

    def _field(self, owner: Typed | Mapping[str, Any], selected: Field) -> Any:
        arguments = {name: self._value(value) for name, value in selected.arguments}
        type_name = (
            owner.type_name if isinstance(owner, Typed) else owner.get("__typename", "Object")
        )
        if selected.name == "__typename":
            return type_name
        if selected.name == "__type":
            return self.project(_introspect(str(arguments.get("name"))), selected.selection)
        if isinstance(owner, Mapping):
            known, value = selected.name in owner, owner.get(selected.name)
        else:
            resolve = TYPES[type_name].get(selected.name)
            known = resolve is not None
            value = resolve(self._context, owner.value, arguments) if resolve else None
        if not known:
            self.unknown.append(f"{type_name}.{selected.name}")
        return self.project(value, selected.selection)

    def _fields(self, selection: Sequence[Selected]) -> Iterator[Field]:
        for selected in selection:
            if isinstance(selected, Spread):
                yield from self._fields(self._request.document.fragments.get(selected.name, ()))
            elif isinstance(selected, Field):
                if self._is_included(selected):
                    yield selected
            else:
                yield from self._fields(selected.selection)

    def _is_included(self, selected: Field) -> bool:
        for name, arguments in selected.directives:
            condition = bool(self._value(dict(arguments).get("if")))
            if (name == "include" and not condition) or (name == "skip" and condition):
                return False
        return True

    def _value(self, value: object) -> Any:
        if isinstance(value, Variable):
            return self._request.variables.get(value.name)
        if isinstance(value, dict):
            return {name: self._value(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return value


def _introspect(type_name: str) -> Mapping[str, Any] | None:
    """What old clients ask in order to learn a server's abilities: the names of a type's fields."""
    known = TYPES.get(type_name)
    if known is None:
        return None
    fields = [{"name": name, "args": []} for name in known]
    return {"name": type_name, "fields": fields, "inputFields": fields}
