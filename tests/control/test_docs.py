"""docs/control.md is the contract: it names everything that crosses the socket."""

import enum
import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.cli.entry import COMMANDS
from coordinator.cli.exit_codes import ExitCode
from coordinator.core import breaker, cluster, protocol
from coordinator.core.model import CommandKind, DownMode, NodeState, Outcome, SlotState, SweepState

TEXT = (Path(__file__).parents[2] / "docs" / "control.md").read_text()
SECTIONS = {
    title.strip().lower(): body
    for title, body in re.findall(r"^##+ (.+)\n((?:(?!^##).*\n)*)", TEXT, re.MULTILINE)
}
CODE = set(re.findall(r"`([^`\n]+)`", TEXT))


VIEWS: dict[str, list[Any]] = {
    "status": [
        protocol.StatusView,
        protocol.SlotView,
        protocol.RedisView,
        protocol.UpstreamView,
        breaker.BreakerView,
    ],
    "run": [protocol.RunView],
    "lease": [protocol.LeaseView],
    "lease in full": [cluster.LeaseDetailView],
    "node": [cluster.NodeView],
    "logs": [protocol.LogLine],
}


def own_fields(view: type[msgspec.Struct]) -> set[str]:
    """Fields that a section lists; those of a view that it extends stand in that one's section."""
    inherited = getattr(view.__mro__[1], "__struct_fields__", ())
    return set(view.__struct_fields__) - set(inherited)


@pytest.mark.parametrize(
    ("section", "view"), [(section, view) for section, views in VIEWS.items() for view in views]
)
def test_every_field_of_a_view_has_its_row(section: str, view: type[msgspec.Struct]) -> None:
    rows = re.findall(r"^\| (`.+?) \|", SECTIONS[section], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert own_fields(view) <= named


def test_no_row_names_a_field_that_does_not_exist() -> None:
    for section, views in VIEWS.items():
        rows = re.findall(r"^\| (`.+?) \|", SECTIONS[section], re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert named == {name for view in views for name in own_fields(view)}


@pytest.mark.parametrize("request_", typing.get_args(protocol.RequestUnion))
def test_every_request_and_its_fields_are_named(request_: type[msgspec.Struct]) -> None:
    section = SECTIONS["`post /v1/command`"]
    for word in (request_.__struct_config__.tag, *request_.__struct_fields__):
        assert f"`{word}`" in section


@pytest.mark.parametrize(
    "words", [CommandKind, DownMode, NodeState, Outcome, SlotState, SweepState]
)
def test_every_word_of_a_state_is_named(words: type[enum.StrEnum]) -> None:
    assert {word.value for word in words} <= CODE


def test_exit_codes_commands_and_protocol_version_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \|", SECTIONS["exit codes"], re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in ExitCode]
    commands = {word.split()[0] for word in CODE if " " in word or word.islower()}
    assert set(COMMANDS) <= commands
    assert f"**control protocol {protocol.PROTOCOL_VERSION}**" in TEXT
