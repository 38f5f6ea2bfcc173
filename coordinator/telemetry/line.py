"""The readable form of an event: one line, the same in the daemon and coordinatorctl.

Owns only layout and color. No control character may reach a terminal. It must import nothing heavy,
because coordinatorctl loads it.
"""

import json
from collections.abc import Mapping
from typing import Any

from coordinator.core.plain import plain, plain_lines

HEAD = ("ts", "event", "level", "node")
"""The fields that every event has, in their order."""
_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "1;31"}


def human_line(event: Mapping[str, Any], *, colour: bool) -> str:
    """`12:03:44.120Z run_exited slot=0 outcome=finished`; a traceback follows on its own lines."""
    level = str(event.get("level", "info"))
    name = plain(str(event.get("event", "?")))
    mark = "" if level in {"info", "debug"} else f"{plain(level.upper())} "
    clock = plain(str(event.get("ts", ""))).partition("T")[2] or "--:--:--"
    fields = " ".join(
        f"{plain(key)}={_shown(value)}"
        for key, value in event.items()
        if key not in HEAD and key != "exception"
    )
    head = f"{mark}{name}"
    if colour and level in _COLOURS:
        head = f"\x1b[{_COLOURS[level]}m{head}\x1b[0m"
    text = f"{clock} {head} {fields}".rstrip()
    trace = event.get("exception")
    return f"{text}\n{plain_lines(str(trace).expandtabs())}" if trace else text


def _shown(value: Any) -> str:
    """A plain word is unchanged; spaces, quotes or control characters make it a JSON string."""
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(' "='):
        return value
    return plain(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
