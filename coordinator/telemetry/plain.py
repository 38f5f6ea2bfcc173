"""Converts the values of an event to plain JSON values.

Owns that conversion. It is total: no value may make a log call fail.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_TEXT = 32_000
"""Maximum length of one text; longer texts are cut, so that no event can fill the disk."""
_MAX_DEPTH = 6
_INT_LIMIT = 2**63


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as null, bool, number, text, list or dict of these."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value, depth)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int):
        return int(value) if -_INT_LIMIT <= value < _INT_LIMIT else str(value)
    if depth >= _MAX_DEPTH:
        return _text(value)
    return _nested(value, depth + 1)


def clean(text: str) -> str:
    """`text` cut to MAX_TEXT and free of lone surrogates (undecodable file names have them)."""
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}… ({len(text)} characters)"
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _nested(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {_text(key): plain(inner, depth) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner, depth) for inner in value]
    if isinstance(value, bytes):
        return clean(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), depth) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name, None), depth) for name in names}
    return _text(value)


def _text(value: Any) -> str:
    try:
        return clean(str(value))
    except Exception:
        return f"<{type(value).__name__}>"
