"""deploy/coordinator.toml knows every key and shows its true default."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.config import Config, load
from coordinator.config.load import known_keys

FILE = Path(__file__).parents[2] / "deploy" / "coordinator.toml"
KEY = re.compile(r"^# (?=[a-z_]+ = )", re.MULTILINE)
CHOSEN = {"sweep.path": "", "sweep.workdir": "."}
"""Keys that the file sets, for a reader to fill in, with the defaults that its comments state."""


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """The values of a table of sections by dotted key."""
    keys: dict[str, Any] = {}
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    for name, value in table.items():
        if name in sections:
            keys.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            keys[name] = value
    return keys


DEFAULTS = flat(msgspec.to_builtins(Config()))
SHOWN = flat(tomllib.loads(KEY.sub("", FILE.read_text())))


def test_the_file_loads_as_it_is() -> None:
    config = load(FILE, {})
    assert config.sweep.path == "ENTITY/PROJECT/SWEEP_ID"


def test_the_file_loads_with_every_key_uncommented(tmp_path: Path) -> None:
    full = tmp_path / "coordinator.toml"
    full.write_text(KEY.sub("", FILE.read_text()))
    load(full, {})


def test_the_file_sets_nothing_but_what_a_reader_must_choose() -> None:
    assert set(flat(tomllib.loads(FILE.read_text()))) == set(CHOSEN)


def test_the_file_shows_every_known_key_and_no_other() -> None:
    assert set(SHOWN) == set(known_keys())


@pytest.mark.parametrize("key", sorted(set(known_keys()) - set(CHOSEN)))
def test_a_commented_key_shows_its_default(key: str) -> None:
    shown = SHOWN.get(key, "is not in the file")
    assert (shown, type(shown)) == (DEFAULTS[key], type(DEFAULTS[key]))


@pytest.mark.parametrize("key", sorted(CHOSEN))
def test_the_default_of_a_chosen_key_is_stated(key: str) -> None:
    name = key.rpartition(".")[2]
    stated = re.search(rf'Default: "(.*)"\.\n{name} = ', FILE.read_text())
    assert stated is not None
    assert stated[1] == CHOSEN[key] == DEFAULTS[key]
