"""Every way to fail: its exit code, its one line, its JSON."""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from coordinator.cli.entry import COMMANDS
from coordinator.core.protocol import Failed, Invalid, Refused
from tests.control.daemon import Daemon, Result, ctl, ctl_process, environment

pytestmark = pytest.mark.anyio


def _check(result: Result, code: int, *words: str) -> None:
    """One line that says what to do, no traceback, and the same as JSON."""
    assert result.code == code
    assert result.err.startswith("coordinatorctl: ")
    assert result.err.count("\n") == 1
    assert result.err[:-1].isprintable()
    for word in words:
        assert word in result.err
    error = result.json
    assert error["exit_code"] == code
    assert error["error"] in result.err


@pytest.mark.parametrize(
    ("answer", "code"), [(Failed("broken"), 1), (Invalid("what?"), 2), (Refused("later"), 6)]
)
async def test_the_daemons_answer_decides(
    daemon: Daemon, answer: Failed | Invalid | Refused, code: int
) -> None:
    daemon.answer = answer
    result = await ctl("drain", "--json", "--socket", str(daemon.socket))
    _check(result, code, answer.message)
    plain = await ctl("drain", "--socket", str(daemon.socket))
    assert (plain.code, plain.out) == (code, "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "leases",
        "leases burn",
        "dance",
        "status extra",
        "scale",
        "scale many",
        "scale 1.5",
        "scale 1 -2",
        "scale 1 --down gently",
        "scale 1 --wiat",
        "signal NOPE all",
        "signal TERM",
        "preempt --grace soon",
        "wait",
        "wait --for godot",
        "wait --for slots=-1",
        "runs --limit -1",
        "events -n x",
        "completion tcsh",
        "--socket= status",
    ],
)
async def test_a_mistyped_line_is_usage_and_points_to_help(line: str) -> None:
    result = await ctl("--json", *line.split())
    _check(result, 2, "--help")


async def test_no_daemon_is_3_and_says_where_it_looked(place: Path) -> None:
    path = place / "control.sock"
    _check(await ctl("--json", "--socket", str(path), "status"), 3, str(path), "start coordinatord")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    _check(await ctl("--json", "--socket", str(path), "events", "-f"), 3, str(path))


async def test_a_path_too_long_for_a_socket_is_a_usage_error() -> None:
    _check(
        await ctl("--json", "--socket", "/" + "x" * 120, "status"), 2, "107 bytes", "--state-dir"
    )


@asynccontextmanager
async def _imposter(
    path: Path, behave: Callable[[SocketStream], Awaitable[None]]
) -> AsyncIterator[None]:
    """Something other than our daemon that listens at `path`."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            # All of the request: closing with a part unread would be a reset to the client.
            request = b""
            with suppress(anyio.EndOfStream):  # `wait` connects once only to see who listens
                while not request.endswith(b"}" if request.startswith(b"POST") else b"\r\n\r\n"):
                    request += await stream.receive()
                await behave(stream)

    async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as tg:
        tg.start_soon(listener.serve, serve)
        yield
        tg.cancel_scope.cancel()


def _http(body: str, *headers: str) -> bytes:
    head = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", ["closed the connection"]),
        (b"220 mail.example ESMTP\r\n", ["cannot be used as a control socket"]),
        (_http("{}", "Server: other"), ["is not coordinatord"]),
        (_http("{}", "X-Coordinator-Protocol: 7"), ["protocol 7", "speaks 1", "installed with"]),
        (_http("{}", "X-Coordinator-Protocol: 1"), ["cannot read the daemon's answer"]),
        (
            _http('{"answer":"maybe"}', "X-Coordinator-Protocol: 1"),
            ["cannot read the daemon's answer"],
        ),
        (
            _http('{"answer":"done"}', "X-Coordinator-Protocol: 1"),
            ["cannot read the daemon's answer"],
        ),
        (
            _http('{"answer":["done"]}', "X-Coordinator-Protocol: 1"),
            ["cannot read the daemon's answer", "done"],
        ),
        (
            _http('{"answer":"done","message":5}', "X-Coordinator-Protocol: 1"),
            ["cannot read the daemon's answer"],
        ),
        (_http("[1]", "X-Coordinator-Protocol: 1"), ["cannot read the daemon's answer", "[1]"]),
        (_http("[" * 100_000, "X-Coordinator-Protocol: 1"), ["cannot read the daemon's answer"]),
        (_http('"\x1b[2J', "X-Coordinator-Protocol: 1"), ["cannot read the daemon's answer"]),
        (b"\x1b[2J\xff", ["cannot be used as a control socket", "start with HTTP/1.1"]),
        (
            b"HTTP/1.1 200 OK\r\nX-Coordinator-Protocol: 1\r\n\r\n{}",
            ["cannot be used as a control socket", "length of the body"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nX-Coordinator-Protocol: 1\r\nContent-Length: 99\r\n\r\n{",
            ["closed the connection"],
        ),
    ],
)
async def test_what_is_not_our_daemon_or_not_our_version_is_1(
    place: Path, sent: bytes, words: list[str]
) -> None:
    async def behave(stream: SocketStream) -> None:
        if sent:
            await stream.send(sent)

    async with _imposter(place / "control.sock", behave):
        result = await ctl("status", "--json", "--socket", str(place / "control.sock"))
    _check(result, 1, *words)


async def test_waiting_does_not_go_on_when_the_versions_do_not_fit(place: Path) -> None:
    async def behave(stream: SocketStream) -> None:
        await stream.send(_http("{}", "X-Coordinator-Protocol: 7"))

    async with _imposter(place / "control.sock", behave):
        path = str(place / "control.sock")
        result = await ctl("wait", "--for", "idle", "--json", "--socket", path)
    _check(result, 1, "protocol 7")


_HURRIED = """
import coordinator.cli.client as client
client.Client.ask.__defaults__ = (0.1,)
client.SILENCE_SECONDS = 0.1
from coordinator.cli import main
main()
"""


@pytest.mark.parametrize("command", ["drain", "events"])
async def test_a_daemon_that_does_not_answer_is_4(place: Path, command: str) -> None:
    async def behave(_stream: SocketStream) -> None:
        await anyio.sleep_forever()

    async with _imposter(place / "control.sock", behave):
        line = [sys.executable, "-c", _HURRIED, command, "--json"]
        env = environment({"COORDINATOR_SOCKET": str(place / "control.sock")})
        with anyio.fail_after(30):
            done = await anyio.run_process(line, check=False, env=env)
    result = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
    _check(result, 4, "does not answer")


async def test_ctrl_c_is_130_and_silent(daemon: Daemon) -> None:
    line = [sys.executable, "-m", "coordinator.cli", "--socket", str(daemon.socket), "logs", "-f"]
    async with await anyio.open_process(line, env=environment()) as process:
        with anyio.fail_after(30):
            await daemon.logs_asked.wait()
            process.send_signal(signal.SIGINT)
            await process.wait()
        assert process.returncode == 130
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            assert b"".join([chunk async for chunk in stream]).strip() == b""


async def test_a_reader_that_leaves_ends_it_quietly(daemon: Daemon) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["events", "-f", "-n", "5"], ["status"], ["--help"]):
        result = await ctl_process("--socket", str(daemon.socket), *arguments, stdout=writer)
        assert (result.code, result.err) == (141, "")
    os.close(writer)


async def test_output_that_cannot_be_written_is_one_line(daemon: Daemon) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    result = await ctl_process("--socket", str(daemon.socket), "status", "--json", stdout=full)
    os.close(full)
    assert result.code == 1
    assert result.err == "coordinatorctl: cannot write the output: No space left on device\n"


async def test_output_survives_a_narrow_locale(daemon: Daemon) -> None:
    daemon.answer = Refused("später ✓")
    result = await ctl_process(
        "--socket", str(daemon.socket), "drain", env={"PYTHONIOENCODING": "ascii"}
    )
    assert (result.code, result.err) == (6, "coordinatorctl: sp\\xe4ter \\u2713\n")


@pytest.mark.parametrize("name", [*COMMANDS, "leases ls"])
async def test_every_command_has_help_with_examples(name: str) -> None:
    result = await ctl(*name.split(), "--help")
    assert result.code == 0
    assert f"coordinatorctl {name}" in result.out.split("Examples:")[1]
    assert max(map(len, result.out.splitlines())) <= 80
