"""Reads the configuration from flags, COORDINATOR_* variables and a TOML file, in that order.

Owns precedence and the messages about bad values. An unknown key is an error in every source, so
that a typo is noticed. It must never print a secret.
"""

import difflib
import enum
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from coordinator.config.model import Config, Section
from coordinator.core.cloud import Cloud
from coordinator.core.model import SweepPath
from coordinator.core.presets import GRACEFUL_SIGNALS
from coordinator.core.signals import signal_number
from coordinator.errors import ConfigError

PREFIX = "COORDINATOR_"
ALIASES = {"COORDINATOR_SOCKET": "control.socket"}
"""A short name that coordinatorctl also reads; it overrides the long one there and here."""
NO_KEYS = frozenset({"COORDINATOR_CONFIG"})
"""Variables that are not keys: the path of the configuration file."""
TRAINING_PREFIX = "COORDINATOR_RUN_"
"""Variables of trainings; a daemon started by a training must ignore them."""


def load(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any] | None = None
) -> Config:
    """Build the configuration; `flags` maps dotted keys ("pool.slots") to values.

    Raises ConfigError that names the file and key, the variable or the flag.
    """
    found: dict[str, tuple[Any, str]] = {}
    if file is not None:
        found.update(_from_file(file))
    found.update(_from_environ(environ))
    found.update({key: (value, _flag(key)) for key, value in (flags or {}).items()})
    values: dict[str, Any] = {}
    for key, (value, where) in found.items():
        section, _, name = key.rpartition(".")
        target = values.setdefault(section, {}) if section else values
        target[name] = _convert(key, value, where)
    config = msgspec.convert(values, Config)
    _check(config, {key: where for key, (_, where) in found.items()})
    return config


def known_keys() -> dict[str, Any]:
    """Every dotted key with the type of its value."""
    return dict(_keys(Config, ""))


def variable(key: str) -> str:
    """The environment variable of a dotted key: "redis.ttl_seconds" has a longer name."""
    return PREFIX + key.replace(".", "_").upper()


def _keys(struct: type[Section], prefix: str) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _keys(field.type, f"{field.name}.")
        else:
            yield prefix + field.name, field.type


FLAGS = {
    "sweep.path": "--sweep",
    "sweep.workdir": "--workdir",
    "pool.slots": "--slots",
    "redis.url": "--redis-url",
    "state_dir": "--state-dir",
    "node": "--node",
    "until_done": "--until-done",
    "rank_gate": "--rank-gate",
}
"""Keys with their own flag; `--set SECTION.KEY=VALUE` sets any other."""


def _flag(key: str) -> str:
    return FLAGS.get(key, f"--set {key}")


def _from_file(file: Path) -> dict[str, tuple[Any, str]]:
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), f"is not valid TOML: {error}") from error
    flat: dict[str, Any] = {}
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    for name, value in table.items():
        if name in sections and isinstance(value, dict):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    keys = known_keys()
    for key in flat:
        if key not in keys:  # checked here, where the file is known
            raise ConfigError(str(file), f"unknown key {_shown(key)}{_hint(key, keys)}")
    return {key: (value, f"{file}: {_shown(key)}") for key, value in flat.items()}


def _from_environ(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    variables = {variable(key): key for key in known_keys()} | ALIASES
    found: dict[str, tuple[Any, str]] = {}
    for name, value in sorted(environ.items(), key=lambda item: item[0] in ALIASES):
        if not name.startswith(PREFIX) or name in NO_KEYS or name.startswith(TRAINING_PREFIX):
            continue
        if name not in variables:
            raise ConfigError(name, f"unknown variable{_hint(name, variables)}")
        found[variables[name]] = (value, name)
    return found


def _shown(key: str) -> str:
    section, _, name = key.rpartition(".")
    return f"[{section}] {name}" if section else name


def _hint(word: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {_shown(close[0])}?" if close else ""


def _convert(key: str, value: Any, where: str) -> Any:
    keys = known_keys()
    if key not in keys:
        raise ConfigError(where, f"unknown key {_shown(key)}{_hint(key, keys)}")
    kind = keys[key]
    if isinstance(value, str) and (kind == dict[str, str] or get_origin(kind) is list):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            form = "list" if get_origin(kind) is list else "object"
            raise ConfigError(where, f"must be a JSON {form} of strings: {error}") from error
    if isinstance(value, str) and kind is bool:
        value = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(
            value.lower(), value
        )
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        # A table may hold secrets of trainings, so it is not shown.
        shown = "(not shown)" if kind == dict[str, str] else repr(value)
        expected = {"pool.slots": "expected a number or 'auto'"}.get(key, _expected(kind, error))
        raise ConfigError(where, f"invalid value {shown}; {expected}") from error


def _expected(kind: Any, error: msgspec.ValidationError) -> str:
    """The values that would be valid, in msgspec's words unless they can be listed."""
    inner = get_args(kind)[0] if get_origin(kind) is list else kind
    if get_origin(inner) is Literal:
        return f"expected {', '.join(map(str, get_args(inner)))}"
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return f"expected {', '.join(str(item.value) for item in inner)}"
    text = str(error)
    return text[:1].lower() + text[1:]


def _check(config: Config, sources: Mapping[str, str]) -> None:
    """Rules that types cannot express."""

    def where(key: str) -> str:
        return sources.get(key, _shown(key))

    if isinstance(config.pool.slots, int) and config.pool.slots < 0:
        raise ConfigError(
            where("pool.slots"),
            f"invalid value {config.pool.slots}; expected 0 or more, or 'auto'",
        )
    if config.sweep.path:
        try:
            SweepPath.parse(config.sweep.path)
        except ValueError as error:
            raise ConfigError(
                where("sweep.path"), f"{error}; the sweep's page on W&B shows all three parts"
            ) from error
    for name, mapped in config.preemption.signals.items():
        _check_signal(name, mapped, where("preemption.signals"))
    for cloud, url in config.preemption.endpoints.items():
        _check_endpoint(cloud, url, where("preemption.endpoints"))


def _check_signal(name: str, mapped: str, where: str) -> None:
    if name not in GRACEFUL_SIGNALS:
        raise ConfigError(where, f"unsupported signal {name!r}; use {', '.join(GRACEFUL_SIGNALS)}")
    try:
        signal_number(mapped)
    except ValueError as error:
        raise ConfigError(where, str(error)) from error


def _check_endpoint(cloud: str, url: str, where: str) -> None:
    if cloud not in set(Cloud):
        raise ConfigError(where, f"unsupported cloud {cloud!r}; use {', '.join(Cloud)}")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(where, f"{url!r} is not an http:// or https:// address")
