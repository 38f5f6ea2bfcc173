"""Every word that a daemon can say has its row in every table of the command line."""

import enum
from datetime import UTC, datetime

import msgspec
import pytest

from coordinator.cli import client, layout, status, tables
from coordinator.cli.exit_codes import ExitCode
from coordinator.cli.fields import Fields
from coordinator.cli.terminal import Page
from coordinator.core import protocol
from coordinator.core.model import NodeState, Outcome, SlotState
from tests.control.daemon import RUN, Daemon, ctl, slot
from tests.control.daemon import status as status_of

NOW = datetime(2026, 1, 2, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (status.SLOT_STYLES, SlotState),
        (status.NODE_STYLES, NodeState),
        (tables.OUTCOME_STYLES, Outcome),
    ],
)
def test_a_table_has_a_row_for_each_word_and_no_other(
    rows: dict[str, str], words: type[enum.StrEnum]
) -> None:
    assert set(rows) == set(words)


def test_no_other_table_of_the_command_line_is_keyed_by_an_enum() -> None:
    """The list above is whole: every dict of these modules whose keys are words of an enum."""
    known = [status.SLOT_STYLES, status.NODE_STYLES, tables.OUTCOME_STYLES]
    words = {word for kind in (SlotState, NodeState, Outcome) for word in kind}
    for module in (status, tables, layout):
        for name, value in vars(module).items():
            if isinstance(value, dict) and words & set(map(str, value)):
                assert any(value is table for table in known), f"{module.__name__}.{name}"


def test_what_the_client_knows_by_heart_is_the_protocol() -> None:
    assert msgspec.json.encode(protocol.GetStatus()) == status.REQUEST
    assert client.PROTOCOL_VERSION == protocol.PROTOCOL_VERSION
    tags = [kind.__struct_config__.tag for kind in protocol.Answer.__args__]
    assert sorted(map(str, tags)) == sorted(client.CODES)
    assert client.CODES["done"] == ExitCode.DONE


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        ({"way": "fork", "detail": ""}, "1 ready  forked"),
        ({"way": "exec", "detail": "w is a wrapper"}, "1 ready  not forked: w is a wrapper"),
        ({"way": "thaw"}, "1 ready  thaw"),
        (None, "1 ready"),
    ],
)
def test_how_agents_are_started_is_shown_with_the_reason(
    start: dict[str, str] | None, shown: str
) -> None:
    view = msgspec.to_builtins(status_of())
    view["agent_start"] = start
    if start is None:  # an older daemon
        del view["agent_start"]
    lines = status.status_lines(Fields(view), NOW, Page(80, colour=False))
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("agents")] == [shown]


@pytest.mark.parametrize("state", SlotState)
def test_a_slot_in_any_state_is_shown(state: SlotState) -> None:
    view = msgspec.to_builtins(status_of(slot(3, state, "run1"), slot(4, state, draining=True)))
    lines = status.status_lines(Fields(view), NOW, Page(80, colour=True))
    (shown,) = [line for line in lines if line.startswith("3")]
    assert f"{state}\x1b[0m" in shown
    assert any(f"{state} (leaving)" in line for line in lines)


@pytest.mark.parametrize("state", NodeState)
def test_a_node_in_any_state_is_shown(state: NodeState) -> None:
    view = msgspec.to_builtins(status_of(state=state))
    assert f"  {state}  " in status.status_lines(Fields(view), NOW, Page(80))[0]


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_a_run_with_any_outcome_is_shown(
    outcome: Outcome | None, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.print_runs([msgspec.structs.replace(RUN, outcome=outcome)], NOW)
    assert f" {outcome or 'running'} " in capsys.readouterr().out


def test_a_word_of_a_newer_daemon_is_shown_without_colour() -> None:
    view = msgspec.to_builtins(status_of(slot(0, SlotState.IDLE)))
    view["slots"][0]["state"] = view["state"] = "dreaming"
    lines = status.status_lines(Fields(view), NOW, Page(80, colour=True))
    assert "  dreaming  " in lines[0]
    assert any(line.startswith("0     dreaming") for line in lines)


def test_the_head_is_folded_where_it_does_not_fit() -> None:
    view = msgspec.to_builtins(status_of())
    view["node"] = "n" * 30
    lines = status.status_lines(Fields(view), NOW, Page(28))
    assert lines[:4] == ["n" * 28, "nn", "running", "entity/project/abc123"]


@pytest.mark.anyio
async def test_a_dirty_slot_is_shown_and_is_not_an_error(daemon: Daemon) -> None:
    daemon.view = status_of(slot(0, SlotState.DIRTY, "run1"))
    result = await ctl("status", "--socket", str(daemon.socket))
    assert (result.code, result.err) == (0, "")
    assert "dirty" in result.out
