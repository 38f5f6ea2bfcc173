"""Where the output goes: how wide it is, whether it shows colour, what its encoding can carry.

Owns the standard streams. Whatever is written there, no character may end in a traceback, and what
is written as JSON must stay JSON. It must import nothing heavy: every command starts with it.
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
    """What one output can show. `encoding` is None where it can carry every character."""

    __slots__ = ("colour", "columns", "encoding")

    def __init__(self, columns: int, *, colour: bool = False, encoding: str | None = None) -> None:
        self.columns = columns
        self.colour = colour
        self.encoding = encoding

    def text(self, value: str) -> str:
        """`value` as it will be seen: no control characters, and escapes for what has no code."""
        shown = plain(value)
        if self.encoding is None or shown.isascii():
            return shown
        return shown.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def styled(self, text: str, style: str) -> str:
        """`text` in `style`, the numbers of an SGR sequence (ECMA-48, 8.3.117); "": as it is."""
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

    The rule is that of shutil.get_terminal_size, which click asks: help and tables agree.
    """
    with suppress(ValueError):
        if (given := int(environ.get("COLUMNS", ""))) > 0:
            return given
    with suppress(OSError, ValueError, AttributeError):  # no terminal, or nothing at all
        return os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_COLUMNS
    return DEFAULT_COLUMNS


def shows_colour(environ: Mapping[str, str]) -> bool:
    """Only on a terminal that has some, and unless $NO_COLOR is set (https://no-color.org)."""
    return sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM", "") != "dumb"


def prepare(*, as_json: bool) -> None:
    """Make standard output and error fit for any character, and present if they were closed."""
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if as_json and isinstance(sys.stdout, TextIOWrapper):
        codecs.register_error(_JSON_ERRORS, _json_escapes)
        # RFC 8259, 8.1: JSON is UTF-8, and ASCII is a part of that. No locale may change it.
        encoding = "utf-8" if _is_utf8(sys.stdout.encoding) else "ascii"
        sys.stdout.reconfigure(encoding=encoding, errors=_JSON_ERRORS)


def require_reader() -> None:
    """Raise BrokenPipeError when nobody can read standard output any more; a write would find out.

    For output that may have nothing to write for hours.
    """
    import select  # noqa: PLC0415 - not for --help

    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # POLLERR is always told
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


def _nowhere() -> TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the process


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in {"utf-8", "utf8"}


def _json_escapes(error: UnicodeError) -> tuple[str, int]:
    r"""Codec error handler: outside ASCII a JSON text has only characters of strings: `\uXXXX`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{unit}" for unit in pairs), error.end
