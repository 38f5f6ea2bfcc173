"""One state directory, one daemon; whoever comes second is told in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.daemon.state import LONGEST_SOCKET_PATH, StateDirError, claim_state_dir
from coordinator.errors import UserError

REPOSITORY = Path(__file__).parents[2]
SECONDS = 60.0
HOLD = """
import sys
from pathlib import Path
from coordinator.daemon.state import claim_state_dir
claim_state_dir(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def holder(root: Path) -> "subprocess.Popen[str]":  # noqa: TID251
    """Another process that holds the directory until its input ends."""
    process = subprocess.Popen(  # noqa: TID251 - the test is synchronous
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def refusal(root: Path) -> str:
    with pytest.raises(StateDirError) as caught:
        claim_state_dir(root)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"--state-dir {root}: ")
    return str(caught.value)


def test_the_directory_and_all_in_it_are_made_for_us_alone(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "state"
    state, lock = claim_state_dir(root)
    os.close(lock)
    for folder in (root, state.outputs, state.exits, state.journal):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    assert (root / "daemon.lock").read_text() == f"pid {os.getpid()}\n"


def test_a_second_daemon_is_refused_and_told_the_pid_of_the_first(tmp_path: Path) -> None:
    process = holder(tmp_path)
    words = refusal(tmp_path)
    assert f"(pid {process.pid})" in words
    assert "coordinatorctl stop" in words
    process.communicate()


def test_the_directory_is_free_as_soon_as_its_daemon_is_gone_however_it_went(
    tmp_path: Path,
) -> None:
    process = holder(tmp_path)
    process.kill()
    process.communicate()
    _, lock = claim_state_dir(tmp_path)
    assert (tmp_path / "daemon.lock").read_text() == f"pid {os.getpid()}\n"
    os.close(lock)


def test_the_lock_does_not_live_on_in_a_child_of_the_daemon(tmp_path: Path) -> None:
    _, lock = claim_state_dir(tmp_path)
    child = subprocess.Popen(["sleep", "600"])  # noqa: TID251
    os.close(lock)
    _, again = claim_state_dir(tmp_path)
    os.close(again)
    child.kill()
    child.wait()


def test_a_path_that_is_too_long_for_a_socket_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    room = LONGEST_SOCKET_PATH - len(os.fsencode(tmp_path)) - len("/" + "/shim.sock")
    longest = tmp_path / ("x" * room)
    _, lock = claim_state_dir(longest)
    os.close(lock)
    assert "too long for a Unix socket" in refusal(tmp_path / ("y" * (room + 1)))
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["x"]


def test_the_length_of_a_path_is_counted_in_bytes(tmp_path: Path) -> None:
    room = LONGEST_SOCKET_PATH - len(os.fsencode(tmp_path)) - len("/" + "/shim.sock")
    assert "too long for a Unix socket" in refusal(tmp_path / ("ä" * (room // 2 + 1)))


def test_a_directory_that_cannot_be_made_is_refused_with_the_systems_reason(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    assert "cannot be used: Not a directory" in refusal(tmp_path / "file" / "state")


def test_coordinatord_says_it_in_one_line_and_ends_with_2(tmp_path: Path) -> None:
    process = holder(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "coordinator.daemon", "--sweep", "e/p/s", "--state-dir", tmp_path],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    process.communicate()
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"coordinatord: --state-dir {tmp_path}: in use by another")
