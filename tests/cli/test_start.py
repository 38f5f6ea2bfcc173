"""Command lines that are answered without click give what click gives."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coordinator.cli import entry, start
from coordinator.core.model import SlotState
from coordinator.core.protocol import Failed, Refused
from tests.control.daemon import Daemon, ctl, slot, status

HELP = Path(start.__file__).with_name(start.HELP_FILE)
Change = Callable[[Daemon], Awaitable[None] | None]


def _by_click(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    entry.run(list(arguments))
    return capsys.readouterr().out


def test_the_help_file_is_what_click_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    again = f"python -m coordinator.cli --help --help >{HELP.name} writes it anew"
    assert HELP.read_text(encoding="utf-8") == _by_click(capsys, "--help"), again


@pytest.mark.anyio
@pytest.mark.parametrize(
    "columns", ["", "0", "-3", "x", "20", "79", "80", "81", "+60", "300", "99999"]
)
@pytest.mark.parametrize("line", ["--help", "-h", "--version"])
async def test_help_and_version_are_clicks_own_at_every_width(
    columns: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.__stdout__", None)  # no terminal, as for the process below
    expected = _by_click(capsys, line)
    result = await ctl(line, env={"COLUMNS": columns})
    assert (result.code, result.out, result.err) == (0, expected, "")


def _degraded(daemon: Daemon) -> None:
    daemon.view = status(slot(0, SlotState.IDLE), degraded=("redis is away", "disk \x1b[2J full"))


def _newer(daemon: Daemon) -> None:
    daemon.added = {"state": "dreaming", "moon": "full \U0001f319", "node": "k\u00f6ln"}


def _odd(daemon: Daemon) -> None:
    daemon.added = {"slots": [{"slot": "0"}]}


def _refused(daemon: Daemon) -> None:
    daemon.looks_answer = Refused("not now")


def _failed(daemon: Daemon) -> None:
    daemon.looks_answer = Failed("broken")


async def _gone(daemon: Daemon) -> None:
    await daemon.stop()


CODES: dict[Change, int] = {
    _degraded: 5,
    _newer: 0,
    _odd: 1,
    _refused: 6,
    _failed: 1,
    _gone: 3,
}


@pytest.mark.anyio
@pytest.mark.parametrize("line", [["status"], ["status", "--json"], ["--json", "status"]])
@pytest.mark.parametrize("change", [None, *CODES])
async def test_status_is_the_same_with_and_without_click(
    daemon: Daemon, line: list[str], change: Change | None
) -> None:
    if change is not None and (waiting := change(daemon)) is not None:
        await waiting
    short = await ctl(*line, env={"COORDINATOR_SOCKET": str(daemon.socket)})
    parsed = await ctl(*line, "--socket", str(daemon.socket))
    assert short == parsed
    expected = 0 if change is None else CODES[change]
    assert short.code == (0 if change is _odd and "--json" in line else expected)
