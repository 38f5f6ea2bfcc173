"""docs/configuration.md has every key with its true default, variable and flag."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from coordinator.config import FLAGS, Config, load
from coordinator.config.load import ALIASES, known_keys, variable
from coordinator.core.model import AgentStart
from coordinator.core.presets import Preset, Target
from coordinator.daemon.command import coordinatord
from coordinator.daemon.state import StateDir, claim_state_dir
from coordinator.state_dir import default_socket, default_state_dir
from tests.docs.blocks import DOCS, table

TEXT = (DOCS / "configuration.md").read_text(encoding="utf-8")
COLUMNS = ("key", "default", "unit", "variable", "flag", "meaning")


def documented() -> dict[str, dict[str, str]]:
    """The rows of all tables of keys, by dotted key."""
    found: dict[str, dict[str, str]] = {}
    every = TEXT.partition("\n## Every key\n")[2].partition("\n## ")[0] + "\n"
    for title, body in re.findall(r"^### (.+)\n((?:(?!^#).*\n)*)", every, re.MULTILINE):
        section = "" if title == "No section" else f"{title.lower()}."
        assert not section or f"`[{section[:-1]}]`" in body
        for line in re.findall(r"^\| (`.+) \|$", body, re.MULTILINE):
            cells = [cell.strip().strip("`") for cell in line.split(" | ")]
            found[section + cells[0]] = dict(zip(COLUMNS, cells, strict=True))
    return found


ROWS = documented()


def default(key: str) -> Any:
    value = msgspec.to_builtins(Config())
    for part in key.split("."):
        value = value[part]
    return value


def test_the_page_has_every_key_and_no_other_in_the_order_of_the_source() -> None:
    assert list(ROWS) == list(known_keys())
    assert len(table("configuration.md", *COLUMNS)) == len(ROWS)


@pytest.mark.parametrize("key", ROWS)
def test_a_row_is_true(key: str) -> None:
    row = ROWS[key]
    assert tomllib.loads(f"x = {row['default']}")["x"] == default(key)
    assert row["variable"] == variable(key)
    assert row["flag"] == FLAGS.get(key, "")
    assert (row["unit"] == "seconds") == key.endswith("_seconds")
    assert len(row["meaning"]) > 20


@pytest.mark.parametrize("key", ROWS)
def test_the_shown_default_can_be_set_by_its_variable_and_by_set(key: str) -> None:
    shown = tomllib.loads(f"x = {ROWS[key]['default']}")["x"]
    text = msgspec.json.encode(shown).decode() if not isinstance(shown, str) else shown
    assert load(None, {ROWS[key]["variable"]: text}) == Config()
    assert load(None, {}, {key: text}) == Config()


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row["unit"]])
def test_only_numbers_have_a_unit(key: str) -> None:
    assert isinstance(default(key), int | float) or key in {"pool.slots", "pool.warm_agents"}


def test_limits_that_a_row_states_are_those_of_the_types() -> None:
    for key, least, most in (
        ("pool.warm_agents", 0, 64),
        ("events.keep", 1, 1000),
        ("rescue.max_attempts", 1, 100),
    ):
        assert f"{least} to {most}" in ROWS[key]["meaning"]
        for good in (least, most):
            load(None, {}, {key: good})
        for bad in (least - 1, most + 1):
            with pytest.raises(Exception, match="invalid value"):
                load(None, {}, {key: bad})
    assert "at least 10000" in ROWS["events.max_bytes"]["meaning"]
    load(None, {}, {"events.max_bytes": 10_000})


def test_every_word_that_a_key_takes_is_named() -> None:
    words = {
        "sweep.resume": ("allow", "must", "never", "auto", "off"),
        "redis.on_lease_loss": ("continue", "strict"),
        "events.format": ("auto", "json", "console"),
        "rank_gate": ("node", "job", "off"),
        "pool.agent_start": tuple(AgentStart),
        "preemption.preset": tuple(Preset),
        "preemption.target": tuple(Target),
        "preemption.on_risk": ("drain", "preempt", "ignore"),
    }
    for key, values in words.items():
        for value in values:
            load(None, {}, {key: value})
            assert f"`{value}`" in ROWS[key]["meaning"]


def test_the_flags_are_those_of_the_command() -> None:
    options = {name for p in coordinatord.params if isinstance(p, click.Option) for name in p.opts}
    assert set(FLAGS.values()) | {"--set", "--config"} <= options
    assert "`--config`" in TEXT
    assert "`--set SECTION.KEY=VALUE`" in TEXT


def test_precedence_is_as_documented(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[preemption]\ngrace_seconds = 1\n")
    environ = {"COORDINATOR_PREEMPTION_GRACE_SECONDS": "2"}
    flags = {"preemption.grace_seconds": "3"}
    assert load(file, environ, flags).preemption.grace_seconds == 3
    assert load(file, environ).preemption.grace_seconds == 2
    assert load(file, {}).preemption.grace_seconds == 1
    assert load(None, {}).preemption.grace_seconds == default("preemption.grace_seconds")


def test_tables_are_not_merged_and_runs_variables_are_passed_over() -> None:
    one = load(None, {"COORDINATOR_PREEMPTION_SIGNALS": '{"SIGTERM": "SIGUSR2"}'})
    assert one.preemption.signals == {"SIGTERM": "SIGUSR2"}
    assert load(None, {"COORDINATOR_RUN_SLOT": "0"}) == Config()


def test_the_short_name_of_the_socket_wins() -> None:
    assert all(f"`{name}`" in TEXT for name in ALIASES)
    both = {"COORDINATOR_SOCKET": "/short", "COORDINATOR_CONTROL_SOCKET": "/long"}
    assert load(None, both).control.socket == "/short"
    assert default_socket(both) == "/short"


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({"COORDINATOR_STATE_DIR": "/a", "STATE_DIRECTORY": "/b"}, 0, "/a"),
        ({"STATE_DIRECTORY": "/b:/c"}, 0, "/b"),
        ({}, 0, "/var/lib/wandb-coordinator"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, 1000, "/x/wandb-coordinator"),
        ({"XDG_STATE_HOME": "x", "HOME": "/h"}, 1000, "/h/.local/state/wandb-coordinator"),
    ],
)
def test_the_state_directory_is_found_as_documented(
    environ: dict[str, str], uid: int, expected: str
) -> None:
    assert default_state_dir(environ, uid) == expected


def test_everything_in_the_state_directory_is_in_the_table(tmp_path: Path) -> None:
    state, lock = claim_state_dir(tmp_path / "s")
    os.close(lock)
    made = {path.name for path in state.root.iterdir()}
    attributes = [name for name, of in vars(StateDir).items() if isinstance(of, property)]
    known = made | {getattr(state, name).name for name in attributes}
    cells = " ".join(row[0] for row in table("configuration.md", "file", "contents"))
    shown = {name.rstrip("/") for name in re.findall(r"`([^`]+)`", cells)}
    assert known | {"control.sock", "events.jsonl", "redis"} == shown
