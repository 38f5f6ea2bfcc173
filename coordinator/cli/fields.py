"""Reads a JSON object of the daemon field by field.

Owns the type check of each field. It is for `status`, which is called so often that it must not
load a library for this; all other commands convert to the views of `core/protocol.py`. Unknown
fields are ignored: a newer daemon has more.
"""

from coordinator.cli.exit_codes import ExitCode
from coordinator.errors import ControlError


class Fields:
    """One object. Every method raises ControlError if the field is missing or has another type.

    `default` is used if the field is missing, because an older daemon does not send it.
    """

    __slots__ = ("_data", "_where")

    def __init__(self, data: object, where: str = "") -> None:
        if not isinstance(data, dict):
            raise _not_understood(where or "the answer")
        self._data: dict[str, object] = data
        self._where = where

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._data.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name)
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._data.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name)
        return value

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        """True or false."""
        value = self._data.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name)
        return value

    def text_or_none(self, name: str) -> str | None:
        """A string, or null."""
        return None if self._data.get(name, "") is None else self.text(name)

    def number_or_none(self, name: str) -> int | None:
        """A whole number, or null."""
        return None if self._data.get(name, "") is None else self.number(name)

    def inner(self, name: str, default: dict[str, object] | None = None) -> "Fields":
        """An object."""
        return Fields(self._data.get(name, default), self._path(name))

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        items = self._items(name)
        texts = [value for value in items if isinstance(value, str)]
        if len(texts) < len(items):
            raise self._wrong(name)
        return texts

    def each(self, name: str) -> list["Fields"]:
        """A list of objects."""
        path = self._path(name)
        items = enumerate(self._items(name))
        return [Fields(value, f"{path}[{number}]") for number, value in items]

    def _items(self, name: str) -> list[object]:
        value = self._data.get(name)
        if not isinstance(value, list):
            raise self._wrong(name)
        return value

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def _wrong(self, name: str) -> ControlError:
        return _not_understood(self._path(name))


def _not_understood(where: str) -> ControlError:
    return ControlError(
        f"cannot read the daemon's answer ({where} is missing or has the wrong type); use the "
        "coordinatorctl installed with the daemon, or --json",
        ExitCode.FAILED,
    )
