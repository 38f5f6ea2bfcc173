"""Removes secrets from events.

Owns the rules for what counts as one. It errs towards redacting: a lost detail can be asked for, a
leaked key cannot be taken back. It must never raise.
"""

import re
from typing import Any
from urllib.parse import quote

REDACTED = "[redacted]"
_WORDS = r"api[_-]?key|passwd|password|token|secret|authorization"
_KEY = re.compile(_WORDS, re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^\s/@\"']+@")
"""user:password@ in a URL (RFC 3986, section 3.2.1)."""
_GATEWAY = re.compile(r"(://[^\s/]+/a/)[\w-]{8,}")
"""The token of an agent in its gateway address."""
_SCHEME = re.compile(r"\b(Basic|Bearer)\s+[\w+/=.~-]{6,}", re.IGNORECASE)
"""The value of an Authorization header (RFC 7617, RFC 6750)."""
_HEADER = re.compile(r"(authorization[\"']?\s*[=:]\s*[\"']?)[^\r\n\"']+", re.IGNORECASE)
"""An Authorization header in a text, up to the end of its line."""
_ASSIGNED = re.compile(
    rf"(?P<key>[\w-]*(?:{_WORDS}))(?P<sep>[\"']?\s*[=:]\s*[\"']?)[^\s&,;\"']+", re.IGNORECASE
)
"""key=value and "key": value in a text: variables, query strings, command lines, JSON."""
_SHORTEST = 4
"""A registered value shorter than this would redact half of every event."""


class Redactor:
    """Rules plus the values that were registered; safe to use from any thread."""

    def __init__(self) -> None:
        self._secrets: tuple[str, ...] = ()

    def register(self, value: str) -> None:
        """Redact `value` everywhere, also in its URL-quoted form."""
        forms = {value, quote(value, safe="")}
        known = forms.union(self._secrets)
        # The longest first: a secret that contains another must be replaced completely.
        self._secrets = tuple(
            sorted((form for form in known if len(form) >= _SHORTEST), key=len, reverse=True)
        )

    def field(self, key: str, value: Any) -> Any:
        """The value of field `key`, which must be plain already."""
        if value is not None and not isinstance(value, bool | int | float) and _KEY.search(key):
            return REDACTED
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self.field(name, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.field("", inner) for inner in value]
        return value

    def text(self, text: str) -> str:
        """`text` without anything that looks like a secret."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        if "://" in text:
            text = _USERINFO.sub(f"{REDACTED}@", text)
            text = _GATEWAY.sub(rf"\g<1>{REDACTED}", text)
        if _KEY.search(text):
            text = _HEADER.sub(rf"\g<1>{REDACTED}", text)
            text = _ASSIGNED.sub(rf"\g<key>\g<sep>{REDACTED}", text)
        return _SCHEME.sub(rf"\g<1> {REDACTED}", text)
