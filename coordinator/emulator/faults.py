"""Faults on demand: which request gets which fault, and how the emulator misbehaves in general.

Owns the rules, their counting and their chance (a seeded generator, so a seed repeats a test). It
must never do what it decides: sleeping, closing a connection and answering are the HTTP server's
part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from coordinator.emulator.records import Now

Kind = Literal["delay", "http", "drop", "empty", "command", "not_running"]


class Behaviour(msgspec.Struct, forbid_unknown_fields=True):
    """How the sweep server behaves for everyone until told otherwise.

    `racy_window` seconds a re-queued run goes on being handed out (0: never twice); `racy_new`
    lets a new run be handed out twice in that window; `wandb_arg` adds the hidden `_wandb`
    argument to `resume` commands; `early_finish` ends a sweep with the hand-out of its last
    configuration.
    """

    racy_window: float = 0.0
    racy_new: bool = False
    wandb_arg: bool = True
    early_finish: bool = False


class Fault(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One rule.

    `op` is a GraphQL operation, `file_stream`, `upload` or `otel`; `*` matches all. `count` bites
    are left (None: no limit), each with `probability`, until `for_seconds` after the rule was
    added. Kinds: `delay` waits `seconds` (to `max_seconds`, if given); `http` answers `status`;
    `drop` cuts the connection; `empty` answers a heartbeat `[]`; `command` puts `command` into a
    heartbeat's answer; `not_running` answers 400 as if the sweep were not running. With `after`
    the request is obeyed first, and only its answer is late or lost. `idle` limits heartbeats to
    idle (or busy) agents.
    """

    kind: Kind
    op: str = "*"
    count: int | None = None
    probability: float = 1.0
    for_seconds: float | None = None
    seconds: float = 0.0
    max_seconds: float | None = None
    status: int = 500
    retry_after: float | None = None
    after: bool = False
    idle: bool | None = None
    command: dict[str, Any] | None = None


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST to `/_emulator/faults`: drop all rules, add some, change the behaviour."""

    clear: bool = False
    add: list[Fault] = []
    racy_window: float | None = None
    racy_new: bool | None = None
    wandb_arg: bool | None = None
    early_finish: bool | None = None


class Faults:
    """The rules in force; `draw` says which of them bite a request."""

    def __init__(self, behaviour: Behaviour, rules: Sequence[Fault], rng: random.Random) -> None:
        """Start with some rules, in force from the first request on."""
        self.behaviour = behaviour
        self._rng = rng
        self._rules: list[tuple[Fault, float | None]] = [(rule, None) for rule in rules]

    def change(self, change: Change, now: Now) -> None:
        """Obey an admin request."""
        if change.clear:
            self._rules.clear()
        self._rules.extend((rule, now.monotonic) for rule in change.add)
        for name in ("racy_window", "racy_new", "wandb_arg", "early_finish"):
            value = getattr(change, name)
            if value is not None:
                setattr(self.behaviour, name, value)

    def draw(self, op: str, idle: bool | None, now: Now) -> list[Fault]:
        """The rules that bite this request; each bite uses up one of a rule's `count`."""
        bites: list[Fault] = []
        for rule, added in self._rules:
            expired = (
                rule.for_seconds is not None and now.monotonic > (added or 0.0) + rule.for_seconds
            )
            if expired or rule.count == 0 or not _matches(rule, op, idle):
                continue
            if rule.probability < 1.0 and self._rng.random() >= rule.probability:
                continue
            if rule.count is not None:
                rule.count -= 1
            bites.append(rule)
        return bites

    def delay_of(self, rule: Fault) -> float:
        """Seconds to wait for one bite of a `delay` (or of any rule that has `seconds`)."""
        if rule.max_seconds is None:
            return rule.seconds
        return self._rng.uniform(rule.seconds, rule.max_seconds)

    def rules(self) -> list[Fault]:
        """The rules that can still bite."""
        return [rule for rule, _ in self._rules if rule.count != 0]


def parse_rule(text: str) -> Fault:
    """Read a rule as the command line writes it: `op=Heartbeat,kind=http,status=500,count=3`.

    Raises `msgspec.ValidationError` or `ValueError` with a message for the user.
    """
    pairs = [part.partition("=") for part in text.split(",") if part]
    bare = [name for name, equals, _ in pairs if not equals]
    if bare:
        raise ValueError(f"{bare[0]!r} in {text!r} is not of the form key=value")
    return msgspec.convert({name: value for name, _, value in pairs}, Fault, strict=False)


def _matches(rule: Fault, op: str, idle: bool | None) -> bool:
    return rule.op in {"*", op} and (rule.idle is None or rule.idle is idle)
