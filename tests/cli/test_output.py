"""What is written reaches its reader whole: terminals, pipes, narrow locales, closed streams."""

import json
import os
import pty
import sys
from contextlib import suppress

import anyio
import pytest
import structlog

from coordinator.control import LogLine, streams
from coordinator.core.model import SlotState
from coordinator.core.plain import plain, plain_lines
from coordinator.core.protocol import Done, Refused
from tests.control.daemon import Daemon, ctl, ctl_process, environment, slot, status

pytestmark = pytest.mark.anyio
log = structlog.get_logger()
EVIL = "köln \U0001f319 \x1b]0;title\x07\u202e"


async def _on_terminal(daemon: Daemon, *arguments: str, **env: str) -> str:
    """What a run writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    environ = environment({"COORDINATOR_SOCKET": str(daemon.socket), "TERM": "xterm", **env})
    line = [sys.executable, "-m", "coordinator.cli", *arguments]
    with anyio.fail_after(30):
        await anyio.run_process(line, check=False, env=environ, stdout=theirs, stderr=theirs)
    with suppress(BlockingIOError):
        shown = os.read(ours, 100_000)
    os.close(ours)
    os.close(theirs)
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("line", [["status"], ["status", "--socket"]])
async def test_state_is_coloured_on_a_terminal(daemon: Daemon, line: list[str]) -> None:
    path = [str(daemon.socket)] if line[-1] == "--socket" else []
    assert "\x1b[32mrunning\x1b[0m" in await _on_terminal(daemon, *line, *path)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
async def test_there_is_no_color_where_it_is_not_wanted(
    daemon: Daemon, env: dict[str, str]
) -> None:
    log.warning("counted")
    for command in ("status", "events", "runs"):
        shown = await _on_terminal(daemon, command, **env)
        assert shown
        assert "\x1b" not in shown


async def test_nothing_that_the_daemon_says_controls_the_terminal(daemon: Daemon) -> None:
    daemon.view = status(slot(0, SlotState.RUNNING, EVIL), degraded=(EVIL,))
    daemon.answer = Done(f"{EVIL}\nsecond line")
    log.warning("counted", text=EVIL, **{EVIL: "\x9b2J"})
    shown = [await ctl(command, "--socket", str(daemon.socket)) for command in ("status", "drain")]
    daemon.answer = Refused(EVIL)
    shown.append(await ctl("drain", "--socket", str(daemon.socket)))
    shown.append(await ctl("events", "--socket", str(daemon.socket)))
    for result in shown:
        for text in (result.out, result.err):
            assert all(line.isprintable() for line in text.splitlines())
        assert r"\x1b]0;title\x07\u202e" in (result.out + result.err).replace("\\u001b", r"\x1b")


async def test_training_output_is_not_touched_but_its_mark_is(daemon: Daemon) -> None:
    daemon.log_lines = [LogLine(0, "r\x1b", "\x1b[1mbold\x1b[0m")]
    result = await ctl("logs", "--socket", str(daemon.socket))
    assert result.out == "[0 r\\x1b] \x1b[1mbold\x1b[0m\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "utf-16"])
async def test_json_is_json_in_every_encoding(daemon: Daemon, encoding: str) -> None:
    daemon.view = status(slot(0, SlotState.RUNNING, EVIL))
    daemon.answer = Done(EVIL)
    daemon.log_lines = [LogLine(0, "r0", EVIL)]
    log.info("counted", text=EVIL)
    env = {"PYTHONIOENCODING": encoding, "COORDINATOR_SOCKET": str(daemon.socket)}
    found = []
    for line in ("status --json", "--json status", "events --json", "logs --json", "drain --json"):
        command = [sys.executable, "-m", "coordinator.cli", *line.split()]
        with anyio.fail_after(30):
            done = await anyio.run_process(command, check=False, env=environment(env))
        if encoding != "utf-8":
            assert done.stdout.isascii()
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert [found[0]["slots"][0]["run_id"], found[1]["slots"][0]["run_id"]] == [EVIL, EVIL]
    assert [found[2]["text"], found[3]["line"], found[4]["message"]] == [EVIL, EVIL, EVIL]


async def test_an_error_is_json_in_every_encoding(daemon: Daemon) -> None:
    daemon.answer = Refused("später")
    env = {"PYTHONIOENCODING": "ascii", "COORDINATOR_SOCKET": str(daemon.socket)}
    result = await ctl_process("drain", "--json", env=env)
    assert (result.code, result.json) == (6, {"error": "später", "exit_code": 6})


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
async def test_tables_survive_every_encoding(daemon: Daemon, encoding: str) -> None:
    daemon.view = status(slot(0, SlotState.RUNNING, EVIL), degraded=(EVIL,))
    env = {"PYTHONIOENCODING": encoding, "COORDINATOR_SOCKET": str(daemon.socket)}
    line = [sys.executable, "-m", "coordinator.cli", "status"]
    with anyio.fail_after(30):
        done = await anyio.run_process(line, check=False, env=environment(env))
    assert done.returncode == 5
    assert "ln" in done.stdout.decode(encoding)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("columns", ["1", "10", "40"])
@pytest.mark.parametrize("command", ["status", "runs", "leases ls"])
async def test_a_narrow_terminal_gets_its_table(daemon: Daemon, command: str, columns: str) -> None:
    env = {"COLUMNS": columns, "COORDINATOR_SOCKET": str(daemon.socket)}
    result = await ctl(*command.split(), env=env)
    assert (result.code, result.err) == (0, "")
    assert "run" in result.out


@pytest.mark.parametrize("line", ["status", "status --json", "--help", "drain", "nonsense"])
async def test_closed_streams_are_no_reason_to_fail(daemon: Daemon, line: str) -> None:
    command = f'exec "{sys.executable}" -m coordinator.cli {line} >&- 2>&-'
    env = environment({"COORDINATOR_SOCKET": str(daemon.socket)})
    with anyio.fail_after(30):
        done = await anyio.run_process(["sh", "-c", command], check=False, env=env)
    assert done.returncode == (2 if line == "nonsense" else 0)


@pytest.mark.parametrize("line", ["status", "status --json", "--version", "runs", "runs --json"])
async def test_a_reader_that_has_left_is_141(daemon: Daemon, line: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {"COORDINATOR_SOCKET": str(daemon.socket)}
    result = await ctl_process(*line.split(), env=env, stdout=writer)
    os.close(writer)
    assert (result.code, result.err) == (141, "")


@pytest.mark.parametrize("command", ["events", "logs"])
async def test_following_ends_when_the_reader_has_left_and_nothing_happens(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 0.1)
    reader, writer = os.pipe()
    os.close(reader)
    env = {"COORDINATOR_SOCKET": str(daemon.socket)}
    result = await ctl_process(command, "-f", "-n", "0", env=env, stdout=writer)
    os.close(writer)
    assert (result.code, result.err) == (141, "")


async def test_an_argument_that_is_not_text_is_a_usage_error(daemon: Daemon) -> None:
    command = [sys.executable.encode(), b"-m", b"coordinator.cli", b"resume", b"\xff"]
    env = environment({"COORDINATOR_SOCKET": str(daemon.socket)})
    with anyio.fail_after(30):
        done = await anyio.run_process(command, check=False, env=env)
    assert (done.returncode, b"not valid UTF-8" in done.stderr) == (2, True)
    command[3] = b"logs"
    with anyio.fail_after(30):
        done = await anyio.run_process(command, check=False, env=env)
    assert done.returncode == 0
    assert daemon.log_queries[-1][0] == "?"


async def test_a_target_may_hold_any_character(daemon: Daemon) -> None:
    await ctl("logs", "a&n=5 %ü", "--socket", str(daemon.socket))
    assert daemon.log_queries == [("a&n=5 %ü", 20, False)]


def test_plain_text_is_left_as_it_is() -> None:
    assert plain("word ü 日本") == "word ü 日本"
    assert plain("\x1b[0m\ta\nb\x7f\u2028\ud800") == r"\x1b[0m\ta\nb\x7f\u2028\ud800"
    assert plain_lines("a\nb\x07") == "a\nb\\x07"
