"""The messages that the source can show to a user, read from its syntax trees.

Owns that reading: nothing is imported. A message is a template whose holes are HOLE; it comes from
a call of one of our error classes, or of an answer that coordinatorctl prints.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "coordinator"
HOLE = "\0"
ROOT = "CoordinatorError"
ANSWERS = frozenset({"Invalid", "Refused", "Failed"})
"""Answers of the daemon that coordinatorctl prints as errors."""
_TELLING = 8
"""Letters that a template must have of its own; with fewer it only passes others' words on."""
Words = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Message:
    """One template: the class that carries it and where it stands."""

    owner: str
    template: str
    place: str

    @property
    def is_telling(self) -> bool:
        """It has words of its own."""
        return len(re.sub(r"[^A-Za-z]", "", self.template)) >= _TELLING

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the message with anything in the holes."""
        parts = [re.escape(part) for part in self.template.split(HOLE)]
        return re.compile(".*?".join(parts))


@dataclass(frozen=True, slots=True)
class Maker:
    """An error class, or a function that returns an error: a template over its parameters."""

    owner: str
    parameters: tuple[str, ...]
    template: str
    """Parameters stand in it as HOLE + name + HOLE."""


def modules(package: Path = PACKAGE) -> dict[str, ast.Module]:
    """Every module but the emulator's, which is no part of the daemon."""
    return {
        str(path.relative_to(package.parent)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
        if "emulator" not in path.relative_to(package).parts
    }


def error_classes(trees: Mapping[str, ast.Module]) -> dict[str, ast.ClassDef]:
    """Every class below CoordinatorError, itself included."""
    classes = {
        node.name: node for tree in trees.values() for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    found = {ROOT: classes[ROOT]}
    while more := {n: node for n, node in classes.items() if _is_below(node, found) - found.keys()}:
        found |= more
    return found


def _is_below(node: ast.ClassDef, known: Mapping[str, ast.ClassDef]) -> set[str]:
    """The class's name if one of `known` is its base."""
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    return {node.name} if bases & known.keys() else set()


def messages(trees: Mapping[str, ast.Module]) -> list[Message]:
    """Every telling message of the source."""
    classes = error_classes(trees)
    makers = {name: _maker(name, node, classes) for name, node in classes.items()}
    makers |= {name: Maker(name, ("message",), f"{HOLE}message{HOLE}") for name in ANSWERS}
    found: list[Message] = []
    for place, tree in trees.items():
        constants = _constants(tree)
        local = makers | _functions(tree, makers, constants)
        found += [
            Message(maker.owner, template, f"{place}:{line}")
            for maker, template, line in _calls(tree, local, constants)
        ]
    return [message for message in dict.fromkeys(found) if message.is_telling]


def returned(tree: ast.Module, function: str) -> list[Message]:
    """What a function that words trouble can return."""
    return [
        Message(function, _text(node.value, {}), function)
        for around in ast.walk(tree)
        if isinstance(around, ast.FunctionDef) and around.name == function
        for node in ast.walk(around)
        if isinstance(node, ast.Return) and node.value is not None
    ]


def _maker(name: str, node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Maker:
    """The template of a class: its own __init__'s, or that of the class above."""
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            parameters = tuple(argument.arg for argument in function.args.args[1:])
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Attribute(attr="__init__"), args=[first, *_]):
                        words = {p: f"{HOLE}{p}{HOLE}" for p in parameters}
                        return Maker(name, parameters, _text(first, words))
                    case _:
                        pass
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id != ROOT:
            above = _maker(name, classes[base.id], classes)
            return Maker(name, above.parameters, above.template)
    return Maker(name, ("message",), f"{HOLE}message{HOLE}")


def _functions(tree: ast.Module, makers: Mapping[str, Maker], constants: Words) -> dict[str, Maker]:
    """Functions that do nothing but return one of our errors."""
    found: dict[str, Maker] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(
                name=name, body=[*_, ast.Return(value=ast.Call(func=ast.Name(id=made)) as call)]
            ) if made in makers:
                parameters = tuple(argument.arg for argument in node.args.args)
                words = dict(constants) | {p: f"{HOLE}{p}{HOLE}" for p in parameters}
                template = _fill(makers[made], call, words)
                found[name] = Maker(makers[made].owner, parameters, template)
            case _:
                pass
    return found


def _calls(
    tree: ast.Module, makers: Mapping[str, Maker], constants: Words
) -> Iterator[tuple[Maker, str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in makers:
                local = dict(constants) | _assigned(tree, node)
                text = re.sub(f"{HOLE}(\\w+{HOLE})?", HOLE, _fill(makers[name], node, local))
                yield makers[name], re.sub(r"\s+", " ", text), node.lineno
            case _:
                pass


def _assigned(tree: ast.Module, call: ast.Call) -> dict[str, str]:
    """Texts that the function around `call` has put into variables."""
    around = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= call.lineno <= (node.end_lineno or 0)
    ]  # fmt: skip
    found: dict[str, str] = {}
    for function in around:
        for node in ast.walk(function):
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.JoinedStr() | ast.Constant() as value
                ):
                    found[name] = _text(value, {})
                case _:
                    pass
    return found


def _fill(maker: Maker, call: ast.Call, words: Words) -> str:
    """The maker's template with the arguments of `call` in place of its parameters."""
    given = dict(zip(maker.parameters, (_text(arg, words) for arg in call.args), strict=False))
    given |= {k.arg: _text(k.value, words) for k in call.keywords if k.arg}
    return re.sub(f"{HOLE}(\\w+){HOLE}", lambda match: given.get(match[1], HOLE), maker.template)


def _text(node: ast.expr, words: Words) -> str:
    """The text of an expression, with holes for what only a run can tell."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value, words) for value in values)
        case ast.FormattedValue(value=ast.Name(id=name), conversion=-1, format_spec=None):
            return words.get(name, HOLE)
        case ast.Name(id=name):
            return words.get(name, HOLE)
        case _:
            return HOLE


def _constants(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value))
            ):
                found[name] = str(value)
            case _:
                pass
    return found
