"""The output: its width, its color support, and the characters of its encoding.

Owns the standard streams. No character may cause a traceback, and JSON must stay valid JSON.
It must import nothing heavy, because every command loads it.
"""

import codecs
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper

from coordinator.core.plain import plain

DEFAULT_COLUMNS = 80
_JSON_ERRORS = "coordinator.json"


class Page:
    """The abilities of one output. `encoding` is None if it has every character."""

    __slots__ = ("colour", "columns", "encoding")

    def __init__(self, columns: int, *, colour: bool = False, encoding: str | None = None) -> None:
        self.columns = columns
        self.colour = colour
        self.encoding = encoding

    def text(self, value: str) -> str:
        """`value` as shown: no control characters, escapes for characters not in the encoding."""
        shown = plain(value)
        if self.encoding is None or shown.isascii():
            return shown
        return shown.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def styled(self, text: str, style: str) -> str:
        """`text` in `style`, the numbers of an SGR sequence (ECMA-48, 8.3.117); "": unchanged."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style else text


def standard_page() -> Page:
    """The page that is standard output."""
    encoding = sys.stdout.encoding
    return Page(
        columns(os.environ),
        colour=shows_colour(os.environ),
        encoding=None if _is_utf8(encoding) else encoding,
    )


def columns(environ: Mapping[str, str]) -> int:
    """The width of standard output: $COLUMNS, else the terminal's, else 80.

    The rule is that of shutil.get_terminal_size, which click uses, so help and tables agree.
    """
    with suppress(ValueError):
        if (given := int(environ.get("COLUMNS", ""))) > 0:
            return given
    with suppress(OSError, ValueError, AttributeError):  # no terminal, or closed
        return os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_COLUMNS
    return DEFAULT_COLUMNS


def shows_colour(environ: Mapping[str, str]) -> bool:
    """Only on a terminal with colors, and unless $NO_COLOR is set (https://no-color.org)."""
    return sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM", "") != "dumb"


def prepare(*, as_json: bool) -> None:
    """Prepare standard output and error for any character, and replace closed ones."""
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if as_json and isinstance(sys.stdout, TextIOWrapper):
        codecs.register_error(_JSON_ERRORS, _json_escapes)
        # RFC 8259, 8.1: JSON is UTF-8, which includes ASCII. No locale may change it.
        encoding = "utf-8" if _is_utf8(sys.stdout.encoding) else "ascii"
        sys.stdout.reconfigure(encoding=encoding, errors=_JSON_ERRORS)


def require_reader() -> None:
    """Raise BrokenPipeError if the reader of standard output is gone, as a write would.

    For streams that may have nothing to write for hours.
    """
    import select  # noqa: PLC0415 - not for --help

    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # POLLERR is always reported
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


def _nowhere() -> TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the process


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in {"utf-8", "utf8"}


def _json_escapes(error: UnicodeError) -> tuple[str, int]:
    r"""Codec error handler: non-ASCII characters in JSON are always inside strings: `\uXXXX`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{unit}" for unit in pairs), error.end
