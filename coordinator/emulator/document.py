"""A reader for the part of the GraphQL language that wandb's clients write.

Owns the syntax: operations, selections, aliases, fragments, arguments, variables and directives.
It must never know a field's meaning. Written from the grammar of the GraphQL specification,
October 2021, section 2; types of variables are read over, since nothing here checks them.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any, Final

_TOKEN: Final = re.compile(
    r"(?P<skip>[\s,\ufeff]+|\#[^\r\n]*)|(?P<punct>\.\.\.|[!$&()\[\]{}:=@|])|(?P<name>[_A-Za-z]\w*)"
    r'|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|"""(?P<block>.*?)"""|"(?P<string>(?:\\.|[^"\\])*)"',
    re.DOTALL,
)
_LITERALS: Final = {"true": True, "false": False, "null": None}


class DocumentError(ValueError):
    """The text is no GraphQL document that we can read; the message says where."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A `$name` in the place of a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """One selected field; an empty selection means a leaf."""

    name: str
    key: str
    arguments: tuple[tuple[str, Any], ...]
    directives: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    selection: tuple[Selected, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """`...Fragment`."""

    name: str


@dataclass(frozen=True, slots=True)
class Inline:
    """`... on Type { … }`; the type condition is ignored, as no union is served."""

    selection: tuple[Selected, ...]


Selected = Field | Spread | Inline


@dataclass(frozen=True, slots=True)
class Operation:
    """A query or mutation with the default values of its variables."""

    kind: str
    name: str
    defaults: tuple[tuple[str, Any], ...]
    selection: tuple[Selected, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """Everything in one text."""

    operations: tuple[Operation, ...]
    fragments: dict[str, tuple[Selected, ...]] = field(hash=False)


@functools.lru_cache(maxsize=512)
def parse(text: str) -> Document:
    """Read a document. Clients send the same few texts over and over, so results are kept."""
    return _Reader(text).document()


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def document(self) -> Document:
        operations: list[Operation] = []
        fragments: dict[str, tuple[Selected, ...]] = {}
        while self._peek() is not None:
            if self._skip("fragment"):
                name = self._next()
                self._expect("on")
                self._next()
                fragments[name] = self._selection()
            else:
                operations.append(self._operation())
        return Document(tuple(operations), fragments)

    def _operation(self) -> Operation:
        if self._peek() == "{":
            return Operation("query", "", (), self._selection())
        kind = self._next()
        if kind not in {"query", "mutation", "subscription"}:
            raise DocumentError(f"Syntax Error: Unexpected {kind!r}")
        name = self._next() if self._peek() not in {"(", "{", "@"} else ""
        defaults = self._variable_defaults() if self._skip("(") else ()
        self._directives()
        return Operation(kind, name, defaults, self._selection())

    def _variable_defaults(self) -> tuple[tuple[str, Any], ...]:
        defaults: list[tuple[str, Any]] = []
        while not self._skip(")"):
            self._expect("$")
            name = self._next()
            self._expect(":")
            while self._peek() in {"[", "]", "!"} or self._is_name():
                self._next()
            if self._skip("="):
                defaults.append((name, self._value()))
        return tuple(defaults)

    def _selection(self) -> tuple[Selected, ...]:
        self._expect("{")
        selected: list[Selected] = []
        while not self._skip("}"):
            selected.append(self._spread() if self._skip("...") else self._field())
        return tuple(selected)

    def _spread(self) -> Selected:
        if self._skip("on"):
            self._next()
            return Inline(self._selection())
        if self._peek() == "{":
            return Inline(self._selection())
        return Spread(self._next())

    def _field(self) -> Field:
        key = name = self._next()
        if self._skip(":"):
            name = self._next()
        arguments = self._arguments() if self._skip("(") else ()
        directives = self._directives()
        selection = self._selection() if self._peek() == "{" else ()
        return Field(name, key, arguments, directives, selection)

    def _arguments(self) -> tuple[tuple[str, Any], ...]:
        arguments: list[tuple[str, Any]] = []
        while not self._skip(")"):
            name = self._next()
            self._expect(":")
            arguments.append((name, self._value()))
        return tuple(arguments)

    def _directives(self) -> tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]:
        directives: list[tuple[str, tuple[tuple[str, Any], ...]]] = []
        while self._skip("@"):
            name = self._next()
            directives.append((name, self._arguments() if self._skip("(") else ()))
        return tuple(directives)

    def _value(self) -> Any:
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        self._at += 1
        match kind, text:
            case "punct", "$":
                return Variable(self._next())
            case "punct", "[":
                values: list[Any] = []
                while not self._skip("]"):
                    values.append(self._value())
                return values
            case "punct", "{":
                return self._object()
            case "number", _:
                return float(text) if any(c in text for c in ".eE") else int(text)
            case (("string" | "block"), _):
                return text
            case "name", _:
                return _LITERALS.get(text, text)
            case _:
                raise DocumentError(f"Syntax Error: Unexpected {text!r} where a value should be")

    def _object(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while not self._skip("}"):
            name = self._next()
            self._expect(":")
            fields[name] = self._value()
        return fields

    def _peek(self) -> str | None:
        if self._at >= len(self._tokens):
            return None
        kind, text = self._tokens[self._at]
        return text if kind in {"punct", "name"} else f"a {kind}"

    def _is_name(self) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at][0] == "name"

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise DocumentError("Syntax Error: Unexpected end of the document")
        self._at += 1
        return token

    def _skip(self, text: str) -> bool:
        found = self._peek() == text
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        token = self._next()
        if token != text:
            raise DocumentError(f"Syntax Error: Expected {text!r}, found {token!r}")


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise DocumentError(f"Syntax Error: Unexpected character {text[at]!r} at {at}")
        if match.lastgroup is not None and match.lastgroup != "skip":
            tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens
