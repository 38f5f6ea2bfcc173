"""Durations as people write and read them: `90`, `5m`, `1h30m`, `3m12s`.

Owns both directions, and how ages are shown. Everything else uses seconds.
"""

import re
from datetime import datetime

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
# Compiled only when a duration is parsed, which few commands do: it takes a millisecond.
_FORM = r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?"
_PLAIN = r"\d+(?:\.\d+)?"


def parse_duration(text: str) -> float:
    """Seconds of `text`: a plain number of seconds or a form such as "1h30m".

    Raises ValueError.
    """
    word = text.strip().lower()
    if re.fullmatch(_PLAIN, word, re.ASCII):
        return float(word)
    match = re.fullmatch(_FORM, word, re.ASCII)
    if not word or match is None:
        raise ValueError(f"invalid duration {text!r}; use seconds (90) or units (5m, 1h30m)")
    parts = match.groupdict()
    return sum(float(parts[unit]) * size for unit, size in _UNITS.items() if parts[unit])


def show_duration(seconds: float) -> str:
    """`0s`, `12s`, `3m12s`, `1h02m`, `2d03h`: the two largest units."""
    whole = max(0, int(seconds))
    minutes, left = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days}d{hours_left:02}h"
    if hours:
        return f"{hours}h{minutes_left:02}m"
    return f"{minutes}m{left:02}s" if minutes else f"{left}s"


def since(moment: str, now: datetime) -> str:
    """How long ago `moment` was; `moment` itself if it is not a time."""
    seconds = _seconds(moment, now)
    return moment if seconds is None else show_duration(seconds)


def ago(moment: str, now: datetime) -> str:
    """The same with "ago"."""
    seconds = _seconds(moment, now)
    return moment if seconds is None else f"{show_duration(seconds)} ago"


def _seconds(earlier: str, later: datetime) -> float | None:
    """Seconds between two times; None if the daemon's is not a time."""
    try:
        return (later - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return None
