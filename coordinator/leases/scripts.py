"""The Lua scripts: one file an operation under `lua/`, loaded once, run by their hash.

Owns how a script's text is put together and run. It must never contain Lua nor interpret answers.
EVALSHA first; a server that lost the script (restart, fail-over, SCRIPT FLUSH) gets its text by
EVAL, which also loads it again. No Functions, no pipelines: both would need a server that knows the
script before (LEASES: data).
"""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from coordinator.leases.connection import Client

NAMES: Final = (
    "acquire",
    "renew_many",
    "release",
    "closing",
    "idle",
    "offer",
    "take",
    "steal",
    "list",
    "show",
    "free",
    "nodes",
    "take_sweep",
    "end_sweep",
    "breaker",
    "pace",
    "strike",
    "stays",
)


def lua_source(name: str) -> str:
    """The text of `lua/NAME.lua`."""
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


_SOURCES: Final = {name: lua_source(name) for name in (*NAMES, "clock", "prelude")}
"""Read at import: no file is read while the loop runs."""


class Scripts:
    """All scripts, ready to run."""

    def __init__(self, clock: str | None = None) -> None:
        """`clock` replaces `lua/clock.lua`, the scripts' only source of time (tests)."""
        shared = (_SOURCES["clock"] if clock is None else clock) + _SOURCES["prelude"]
        self._texts = {name: _assemble(_SOURCES[name], shared) for name in NAMES}
        self._hashes = {
            name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            for name, text in self._texts.items()
        }

    async def run(
        self, client: "Client", name: str, keys: Sequence[str], args: Sequence[str | int]
    ) -> list[Any]:
        """The script's answer. Raises what redis-py raises; the caller sets the deadline."""
        try:
            answer = await client.evalsha(self._hashes[name], len(keys), *keys, *args)
        except NoScriptError:
            answer = await client.eval(self._texts[name], len(keys), *keys, *args)
        return list(answer)


def _assemble(body: str, shared: str) -> str:
    """The shebang, which carries the script's flags, must stay the first line."""
    shebang, rest = body.split("\n", 1)
    return f"{shebang}\n{shared}{rest}"
