"""Children of the daemon: where they live, where their output goes, and how they end."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest

from coordinator.process import tree
from coordinator.process.spawn import Child, spawn
from tests.process.actors import SLEEPER
from tests.support.emulator import wait_until

pytestmark = pytest.mark.anyio

ACTORS = Path(__file__).with_name("actors.py")
REPOSITORY = Path(__file__).parents[2]
SECONDS = 60.0
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}


async def start(tmp_path: Path, *command: str, env: dict[str, str] | None = None) -> Child:
    return await spawn(
        command, env=ENV if env is None else env, cwd=tmp_path, output=tmp_path / "logs" / "out"
    )


async def ended(child: Child) -> int:
    with anyio.fail_after(SECONDS):
        return await child.wait()


def output(tmp_path: Path) -> str:
    return (tmp_path / "logs" / "out").read_text()


def state(pid: int) -> str:
    """The letter of proc(5); "" for no process."""
    found = [seen.state for seen in tree.processes() if seen.pid == pid]
    return found[0] if found else ""


async def until(what: str, probe: Callable[[], bool]) -> None:
    await anyio.to_thread.run_sync(wait_until, what, probe, SECONDS)


async def test_a_child_has_a_session_and_a_group_of_its_own(tmp_path: Path) -> None:
    child = await start(tmp_path, *SLEEPER)
    assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
    await child.kill_session()
    await ended(child)


async def test_a_child_gets_exactly_its_environment_and_directory_and_no_input(
    tmp_path: Path,
) -> None:
    child = await start(tmp_path, "/usr/bin/env", env={"ONLY": "this one"})
    assert await ended(child) == 0
    # In the C locale CPython adds one of its own (PEP 538), as it does for any wandb agent.
    seen = [line for line in output(tmp_path).splitlines() if not line.startswith("LC_CTYPE=")]
    assert seen == ["ONLY=this one"]
    script = "pwd; readlink /proc/self/fd/0; ls /proc/self/fd | wc -l"
    assert await ended(await start(tmp_path, "sh", "-c", script)) == 0
    assert output(tmp_path).splitlines()[-3:] == [str(tmp_path), "/dev/null", "4"]


async def test_what_has_left_its_session_is_killed_with_it(tmp_path: Path) -> None:
    script = f"setsid {shlex.join(SLEEPER)} & echo $!; wait"
    child = await start(tmp_path, "sh", "-c", script)
    await until("both live", lambda: len(tree.sessions_of(child.pid)) == 2)
    escaped = int(output(tmp_path))
    assert os.getsid(escaped) != child.pid
    await child.kill_session()
    await ended(child)
    assert state(escaped) in ("", "Z")


async def test_output_and_errors_are_appended_to_one_file_that_only_we_may_read(
    tmp_path: Path,
) -> None:
    await ended(await start(tmp_path, "sh", "-c", "echo one; echo two >&2"))
    await ended(await start(tmp_path, "echo", "three"))
    assert output(tmp_path) == "one\ntwo\nthree\n"
    assert (tmp_path / "logs" / "out").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("how", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9)])
async def test_the_exit_code_is_negative_for_a_signal(how: str, code: int, tmp_path: Path) -> None:
    child = await start(tmp_path, "sh", "-c", how)
    assert await ended(child) == code
    assert child.exit_code == code


async def test_a_command_that_is_not_there_ends_with_127_and_says_so(tmp_path: Path) -> None:
    assert await ended(await start(tmp_path, "./absent", "x")) == 127
    assert output(tmp_path) == "./absent: No such file or directory\n"


@pytest.mark.parametrize(("cwd", "log"), [("absent", "out"), (".", "folder"), (".", "file/out")])
async def test_a_directory_or_a_file_that_cannot_be_used_is_an_error_of_the_system(
    cwd: str, log: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"No such file|Is a directory|Not a directory|File exists"):
        await spawn(["true"], env=ENV, cwd=tmp_path / cwd, output=tmp_path / log)


async def test_a_signal_goes_to_the_child_alone(tmp_path: Path) -> None:
    child = await start(tmp_path, "sh", "-c", "trap 'echo got; exit 0' USR1; sleep 600 & wait")
    await until("the sleeper is there", lambda: len(tree.in_session(child.pid)) == 2)
    child.send(signal.SIGUSR1)
    assert await ended(child) == 0
    assert output(tmp_path) == "got\n"
    assert await child.kill_session() == 1


async def test_no_signal_is_sent_to_a_child_that_has_ended(tmp_path: Path) -> None:
    child = await start(tmp_path, "true")
    await ended(child)
    child.send(signal.SIGKILL)
    assert await child.kill_session() == 0


async def test_the_whole_session_is_killed_frozen_processes_too(tmp_path: Path) -> None:
    child = await start(tmp_path, "sh", "-c", "sleep 600 & sleep 600 & wait")
    await until("the family is there", lambda: len(tree.in_session(child.pid)) == 3)
    child.send(signal.SIGSTOP)
    await until("it is frozen", lambda: state(child.pid) == "T")
    with anyio.fail_after(SECONDS):
        assert await child.kill_session() == 3
    assert await ended(child) == -signal.SIGKILL
    assert tree.in_session(child.pid) == []


def daemon(tmp_path: Path, ignored: Sequence[int] = ()) -> "tuple[subprocess.Popen[str], int]":  # noqa: TID251
    """A stand-in for the daemon, with the pid of its one child."""
    numbers = ",".join(str(int(number)) for number in ignored or [signal.SIGUSR1])
    process = subprocess.Popen(  # noqa: TID251 - it is killed, never awaited
        [sys.executable, str(ACTORS), "daemon", str(tmp_path / "out"), numbers],
        stdout=subprocess.PIPE, text=True, env=ENV,
    )  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_child_dies_with_the_daemon_however_that_ends(tmp_path: Path) -> None:
    process, child = daemon(tmp_path)
    assert state(child) not in ("", "Z")
    process.kill()
    process.communicate()
    wait_until("the child is gone", lambda: state(child) in ("", "Z"), SECONDS)


def test_a_signal_that_the_daemon_ignores_is_not_ignored_by_its_children(tmp_path: Path) -> None:
    process, child = daemon(tmp_path, [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
    program = b"\0".join(map(os.fsencode, SLEEPER)) + b"\0"
    wait_until("it is the program", lambda: _command_line(child) == program, SECONDS)
    lines = Path(f"/proc/{child}/status").read_text().splitlines()
    masks = dict(line.split(":\t") for line in lines if line.startswith("Sig"))
    process.kill()
    process.communicate()
    python_itself = {signal.SIGPIPE, signal.SIGXFSZ}
    ignored = int(masks["SigIgn"], 16)
    assert {n for n in range(1, 32) if ignored & (1 << (n - 1))} <= python_itself
    assert int(masks["SigBlk"], 16) == 0


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
