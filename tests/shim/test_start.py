"""From the shim's first word to the training's first instruction."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from coordinator.core.shim_protocol import Exited, Refuse, Started, StartFailed, TreeGone
from tests.shim.stage import LISTENER, NOTES, PYTHON, SECONDS, Stage

SHOW = (
    NOTES
    + """
import json
note("seen", json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(),
                         "stdin": os.readlink("/proc/self/fd/0")}))
"""
)
MARK = [*PYTHON, NOTES + 'note("started")']


def test_the_shim_introduces_itself_with_all_that_names_its_training(stage: Stage) -> None:
    command = ["python3", "train.py", "--lr=0.1", "", "two words", "täglich"]
    shim = stage.start(command)
    hello = stage.daemon.greet()
    assert hello.argv == command
    assert (hello.agent, hello.run_id, hello.pid) == ("token", "r1", shim.pid)
    assert hello.cwd == str(stage.directory)
    assert hello.child_pid is None
    assert hello.status is None


def test_a_training_gets_exactly_its_arguments_its_directory_and_its_environment(
    stage: Stage,
) -> None:
    arguments = ["--lr=0.1", "", "two words", "$HOME", "täglich", "-x", "--"]
    env = stage.environment(KEPT="1", CHANGED="old", REMOVED="x")
    stage.start([*PYTHON, SHOW, *arguments], env)
    stage.daemon.greet()
    stage.go(CHANGED="new", ADDED="2", REMOVED=None, NEVER_THERE=None)
    seen = json.loads(stage.wait_note("seen")[0])
    assert seen["argv"] == arguments
    assert seen["cwd"] == str(stage.directory)
    assert seen["stdin"] == "/dev/null"
    expected = {key: value for key, value in env.items() if key != "REMOVED"}
    expected |= {"CHANGED": "new", "ADDED": "2"}
    for ours in ("COORDINATOR_RUN_SHIM", "COORDINATOR_RUN_AGENT"):
        del expected[ours]
    # CPython may add this one when the locale is C (PEP 538).
    assert {k: v for k, v in seen["env"].items() if k != "LC_CTYPE"} == expected


def test_a_command_line_of_a_megabyte_is_told_whole(stage: Stage) -> None:
    command = ["true", *[str(number) * 20_000 for number in range(10) for _ in range(5)]]
    shim = stage.start(command)
    assert stage.daemon.greet().argv == command
    stage.go()
    stage.daemon.hear(Started)
    assert shim.wait(SECONDS) == 0


def test_nothing_starts_before_the_word_to_start(stage: Stage) -> None:
    shim = stage.start(MARK)
    stage.daemon.greet()
    assert stage.notes("started") == []
    stage.daemon.say_raw(b'{"do": "word_of_a_newer_daemon"}\n{"do": "go"}\n')
    stage.daemon.say_raw(b'{"do": "signal", "signal": 15}\n')
    assert stage.notes("started") == []
    stage.go()
    stage.wait_note("started")
    assert shim.wait(SECONDS) == 0


def test_a_second_word_to_start_starts_nothing_more(stage: Stage) -> None:
    shim = stage.start(MARK)
    stage.daemon.greet()
    stage.go()
    stage.go()
    assert shim.wait(SECONDS) == 0
    assert len(stage.notes("started")) == 1


@pytest.mark.parametrize("code", [75, 3])
def test_a_refused_shim_starts_nothing_says_why_and_ends_as_it_was_told(
    code: int, stage: Stage
) -> None:
    shim = stage.start(MARK)
    stage.daemon.greet()
    stage.daemon.say(Refuse(code, "this run was given to somebody else"))
    assert shim.wait(SECONDS) == code
    assert stage.notes("started") == []
    assert "this run was given to somebody else" in stage.output()


def test_without_a_daemon_nothing_starts(stage: Stage) -> None:
    stage.daemon.die()
    shim = stage.start(MARK)
    assert shim.wait(SECONDS) == 75
    assert stage.notes("started") == []
    assert "not started: the coordinator is gone" in stage.output()


def test_a_daemon_that_ends_before_the_word_to_start_means_no_start(stage: Stage) -> None:
    shim = stage.start(MARK)
    stage.daemon.greet()
    stage.daemon.die()
    assert shim.wait(SECONDS) == 75
    assert stage.notes("started") == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_before_the_word_to_start_ends_the_shim(signum: int, stage: Stage) -> None:
    shim = stage.start(MARK)
    stage.daemon.greet()
    os.kill(shim.pid, signum)
    assert shim.wait(SECONDS) == -signum
    assert stage.daemon.hear_all() == []
    assert stage.notes("started") == []


@pytest.mark.parametrize("name", ["absent", "plain", "folder"])
def test_a_command_that_cannot_be_executed_is_said_and_ends_with_127(
    name: str, stage: Stage
) -> None:
    (stage.directory / "plain").write_text("no program")
    (stage.directory / "folder").mkdir()
    program = str(stage.directory / name)
    shim = stage.start([program, "--n=1"])
    stage.daemon.greet()
    stage.go()
    failed = stage.daemon.hear(StartFailed)
    assert failed.exit_code == 127
    assert failed.error.startswith(f"{program}: ")
    assert shim.wait(SECONDS) == 127
    assert failed.error in stage.output()


def test_the_path_of_the_training_is_searched_as_it_was_changed(stage: Stage) -> None:
    folder = stage.directory / "bin"
    folder.mkdir()
    (folder / "only-there").symlink_to("/bin/true")
    shim = stage.start(["only-there"])
    stage.daemon.greet()
    stage.go(PATH=str(folder))
    stage.daemon.hear(Started)
    assert shim.wait(SECONDS) == 0


def test_a_training_starts_as_a_bare_agent_would_start_it(stage: Stage) -> None:
    """Own process group, the agent's session, no signal ignored or blocked by us."""
    script = "cat /proc/self/stat /proc/self/status"
    shim = stage.start(["sh", "-c", f"exec {script}"])
    stage.daemon.greet()
    session = os.getsid(shim.pid)
    stage.go()
    pid = stage.daemon.hear(Started).pid
    stage.daemon.hear(Exited)
    stat, *status = stage.output().splitlines()
    group, seen_session = map(int, stat.rpartition(")")[2].split()[2:4])
    assert (group, seen_session) == (pid, session)
    masks = dict(line.split(":\t") for line in status if line.startswith("Sig"))
    for mask in ("SigBlk", "SigIgn", "SigCgt"):
        assert int(masks[mask], 16) == 0, mask


def test_no_file_of_the_shim_is_open_in_the_training(stage: Stage) -> None:
    shim = stage.start([*PYTHON, 'import os; print(len(os.listdir("/proc/self/fd")) - 1)'])
    stage.daemon.greet()
    stage.go()
    assert shim.wait(SECONDS) == 0
    assert stage.output() == "3\n"


def test_a_storm_of_signals_around_the_start_reaches_the_training_once_each_at_most(
    stage: Stage,
) -> None:
    shim = stage.start([*PYTHON, LISTENER])
    stage.daemon.greet()
    stage.go()
    storm = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
    started = stage.daemon.hear(Started)  # any earlier one may end the shim, see above
    for _ in range(40):
        for signum in storm:
            os.kill(shim.pid, signum)
    with suppress(ProcessLookupError):
        os.kill(started.pid, signal.SIGKILL)
    assert shim.wait(SECONDS) in {-signum for signum in (*storm, signal.SIGKILL)}
    heard = stage.daemon.hear_all()
    sent = [message.signal for message in heard if hasattr(message, "signal")]
    assert sorted(sent) == sorted(set(sent))
    assert set(sent) <= set(storm) - {signal.SIGWINCH}
    assert isinstance(heard[-1], TreeGone)


def test_a_storm_that_begins_before_the_shim_has_begun_starts_nothing_twice(stage: Stage) -> None:
    shim = stage.start([*PYTHON, LISTENER])
    for _ in range(50):
        os.kill(shim.pid, signal.SIGTERM)
    assert shim.wait(SECONDS) == -signal.SIGTERM
    assert stage.notes("ready") == []


def test_a_command_without_a_daemon_in_its_environment_is_run_plainly(stage: Stage) -> None:
    env = stage.environment()
    del env["COORDINATOR_RUN_SHIM"]
    process = stage.start([*PYTHON, NOTES + 'note("pid", os.getpid()); sys.exit(7)'], env)
    assert process.wait(SECONDS) == 7
    assert stage.notes("pid") == [str(process.pid)], "it became the command"


def test_the_shim_needs_nothing_but_the_standard_library_and_is_free_of_the_users_python(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "socket.py").write_text("raise SystemExit('the wrong module')")
    env = stage.environment(PYTHONPATH=str(tmp_path), PYTHONSTARTUP="x", PYTHONHOME="")
    shim = stage.start([sys.executable, "-c", "print('fine')"], env)
    stage.daemon.greet()
    stage.go(PYTHONPATH=None, PYTHONHOME=None)
    assert shim.wait(SECONDS) == 0
    assert stage.output() == "fine\n"
