"""The events that the source can emit, read from its syntax trees.

Owns that reading: nothing is imported. What it cannot resolve is a `Puzzle`, which fails the test:
the vocabulary must be readable without running anything.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "coordinator"
LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "critical": "critical",
    "exception": "error",
}
"""Method of the logger to level of the event; structlog gives `exception` the level "error"."""
HEAD: Final = frozenset({"ts", "event", "level", "node"})


class Puzzle(Exception):  # noqa: N818 - it is a finding about the source
    """The source says something that this reader cannot follow."""


@dataclass(slots=True)
class Emitted:
    """One event name with everything that its calls have in common and do not."""

    levels: set[str] = field(default_factory=set)
    always: set[str] | None = None
    ever: set[str] = field(default_factory=set)
    places: list[str] = field(default_factory=list)

    def add(self, level: str, always: set[str], ever: set[str], place: str) -> None:
        """Take one call into account."""
        self.levels.add(level)
        self.always = always if self.always is None else self.always & always
        self.ever |= ever
        self.places.append(place)

    @property
    def optional(self) -> set[str]:
        """Fields that some of its events lack."""
        return self.ever - (self.always or set())


def emitted_events(package: Path = PACKAGE) -> dict[str, Emitted]:
    """Every event of every module of `package`, but the emulator's and the shim's: no daemon."""
    found: dict[str, Emitted] = {}
    for path in sorted(package.rglob("*.py")):
        if "emulator" in path.relative_to(package).parts:
            continue
        place = str(path.relative_to(package.parent))
        _read(ast.parse(path.read_text(encoding="utf-8")), place, found)
    return found


def read_source(source: str) -> dict[str, Emitted]:
    """The events of one piece of source."""
    found: dict[str, Emitted] = {}
    _read(ast.parse(source), "source", found)
    return found


def _read(module: ast.Module, place: str, found: dict[str, Emitted]) -> None:
    for function, call in _log_calls(module):
        where = f"{place}:{call.lineno}"
        always, ever = _fields(call, function, module, where)
        assert isinstance(call.func, ast.Attribute)
        for name in _names(call, where):
            found.setdefault(name, Emitted()).add(LEVELS[call.func.attr], always, ever, where)
    for name, level, keys, line in _literal_events(module):
        found.setdefault(name, Emitted()).add(level, keys, keys, f"{place}:{line}")


def _log_calls(module: ast.Module) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Calls of the module's logger, each with the function around it."""
    functions = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=method)) if (
                method in LEVELS
            ):
                around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
                yield max(around, key=lambda f: f.lineno, default=module), node
            case _:
                pass


def _names(call: ast.Call, where: str) -> list[str]:
    """The event's name: a literal, or one of two literals."""
    match call.args:
        case [ast.Constant(value=str(name))]:
            names = [name]
        case [ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(other)))]:
            names = [one, other]
        case _:
            raise Puzzle(f"{where}: the name of an event is no literal")
    for name in names:
        if not name.islower() or not name.replace("_", "").isalnum() or not name.isascii():
            raise Puzzle(f"{where}: {name!r} is not snake_case")
    return names


def _fields(
    call: ast.Call, function: ast.AST, module: ast.Module, where: str
) -> tuple[set[str], set[str]]:
    """The fields that the call always gives, and those that it may give."""
    assert isinstance(call.func, ast.Attribute)
    always = {"exception"} if call.func.attr == "exception" else set[str]()
    ever = set(always)
    for keyword in call.keywords:
        if keyword.arg == "exc_info":
            ever.add("exception")  # structlog turns it into the traceback, or leaves it out
        elif keyword.arg is not None:
            always.add(_shown(keyword.arg))
        else:
            sure, possible = _expand(keyword.value, function, module, where)
            always |= sure
            ever |= possible
    return always, ever | always


def _expand(
    value: ast.expr, function: ast.AST, module: ast.Module, where: str
) -> tuple[set[str], set[str]]:
    """What `**value` adds: a local table, or what a function of the same module returns."""
    tables: list[ast.expr | None] = []
    match value:
        case ast.Name(id=name):
            tables = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
            ]
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            tables = [
                returned.value
                for node in ast.walk(module)
                if isinstance(node, ast.FunctionDef) and node.name == name
                for returned in ast.walk(node)
                if isinstance(returned, ast.Return)
            ]
        case _:
            pass
    sets = [_keys(table) for table in tables if isinstance(table, ast.Dict)]
    if not sets or len(sets) != len(tables):
        raise Puzzle(f"{where}: **{ast.unparse(value)} cannot be followed")
    keys = [{key for key in found if key != "exc_info"} for found in sets]
    hidden = {"exception"} if any("exc_info" in found for found in sets) else set[str]()
    return set.intersection(*keys), set.union(*keys) | hidden


def _literal_events(module: ast.Module) -> Iterator[tuple[str, str, set[str], int]]:
    """Tables that are events already: they have `event` and `level` as literals."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Dict):
            continue
        table = {
            key.value: value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }
        match table.get("event"), table.get("level"):
            case ast.Constant(value=str(name)), ast.Constant(value=str(level)):
                yield name, level, {str(key) for key in table} - HEAD, node.lineno
            case _:
                pass


def _keys(table: ast.Dict) -> set[str]:
    keys = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    if len(keys) != len(table.keys):
        raise Puzzle(f"line {table.lineno}: a key of a table of fields is no literal")
    return {_shown(str(key)) for key in keys}


def _shown(key: str) -> str:
    """A field that is named like one of the head's gets an underscore (telemetry.setup)."""
    return f"{key}_" if key in HEAD else key
