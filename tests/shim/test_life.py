"""From the training's first instruction to the end of its last process."""

import json
import os
import signal

import pytest

from coordinator.core.shim_protocol import (
    Exited,
    KillTree,
    Refuse,
    SendSignal,
    SignalSent,
    Started,
    StartFailed,
    TreeGone,
)
from tests.shim.stage import FAMILY, LISTENER, NOTES, PYTHON, SECONDS, Stage, lives, wait_gone

PASSED_ON = [
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
]
KEPT_BACK = [signal.SIGTSTP, signal.SIGWINCH, signal.SIGALRM]


def begin(stage: Stage, script: str, linger_seconds: float = 60.0) -> tuple[int, int]:
    """Start a training that notes "ready"; the pids of its shim and of itself."""
    shim = stage.start([*PYTHON, script])
    stage.daemon.greet()
    stage.go(linger_seconds)
    pid = stage.daemon.hear(Started).pid
    assert stage.wait_note("ready") == [str(pid)]
    return shim.pid, pid


def ended(stage: Stage) -> int:
    """How the shim of the test ended."""
    return stage._shims[0].wait(SECONDS)


# --- the end --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(255)", 255),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 15)", -15),
        ("os.kill(os.getpid(), 11)", -11),
        ("os.kill(os.getpid(), 10)", -10),
        ("os.kill(os.getpid(), 6)", -6),
    ],
)
def test_the_shim_tells_the_true_wait_status_and_ends_as_the_training_did(
    how: str, code: int, stage: Stage
) -> None:
    shim = stage.start([*PYTHON, f"import os, sys; {how}"])
    stage.daemon.greet()
    stage.go()
    pid = stage.daemon.hear(Started).pid
    status = stage.daemon.hear(Exited).status
    assert os.waitstatus_to_exitcode(status) == code
    assert stage.daemon.hear(TreeGone).killed == 0
    assert shim.wait(SECONDS) == code
    record = stage.exit_record()
    assert (record["status"], record["pid"]) == (status, pid)


def test_the_exit_file_is_there_whole_before_the_exit_is_told(stage: Stage) -> None:
    begin(stage, LISTENER)
    stage.daemon.say(KillTree())
    stage.daemon.hear(Exited)
    assert stage.exit_record()["status"] == signal.SIGKILL
    leftovers = [path.name for path in stage.directory.iterdir() if "exit.json" in path.name]
    assert leftovers == ["exit.json"]


def test_an_exit_file_that_cannot_be_written_costs_only_the_file(stage: Stage) -> None:
    stage.exit_file = stage.directory / "absent" / "exit.json"
    stage.start(["true"])
    stage.daemon.greet()
    stage.go()
    stage.daemon.hear(Started)
    assert stage.daemon.hear(Exited).status == 0
    stage.daemon.hear(TreeGone)
    assert ended(stage) == 0


# --- signals --------------------------------------------------------------------------------------
@pytest.mark.parametrize("signum", PASSED_ON)
def test_a_signal_of_the_agent_is_passed_on_and_told(signum: int, stage: Stage) -> None:
    shim, _ = begin(stage, LISTENER)
    os.kill(shim, signum)
    assert stage.daemon.hear(SignalSent) == SignalSent(signum, "direct")
    assert stage.wait_note("signal") == [str(int(signum))]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGWINCH])
def test_a_signal_of_the_daemon_goes_to_the_training_alone(signum: int, stage: Stage) -> None:
    begin(stage, FAMILY + "signal.signal(15, lambda *_: note('signal', 15))\n"
          "signal.signal(10, lambda *_: note('signal', 10))\n"
          "signal.signal(28, lambda *_: note('signal', 28))\nnote('set')\nwait()")  # fmt: skip
    stage.wait_note("set")
    stage.daemon.say(SendSignal(signum))
    assert stage.daemon.hear(SignalSent) == SignalSent(signum, "daemon")
    assert stage.wait_note("signal") == [str(int(signum))]
    assert all(lives(int(pid)) for pid in stage.notes("child") + stage.notes("daemon"))


def test_each_signal_is_passed_on_once_whoever_sends_it(stage: Stage) -> None:
    shim, _ = begin(stage, LISTENER)
    os.kill(shim, signal.SIGTERM)
    stage.wait_note("signal")
    os.kill(shim, signal.SIGTERM)
    stage.daemon.say(SendSignal(signal.SIGTERM))
    stage.daemon.say(SendSignal(signal.SIGUSR2))  # the shim answers in order
    assert stage.wait_note("signal", count=2) == ["15", "12"]
    stage.daemon.say(KillTree())
    said = [message for message in stage.daemon.hear_all() if isinstance(message, SignalSent)]
    assert said == [SignalSent(15, "direct"), SignalSent(12, "daemon")]


def test_a_person_may_send_a_signal_again(stage: Stage) -> None:
    begin(stage, LISTENER)
    for count in range(1, 4):
        stage.daemon.say(SendSignal(signal.SIGUSR1, once=False))
        stage.wait_note("signal", count=count)
    assert stage.notes("signal") == ["10"] * 3


def test_a_signal_that_an_agent_forwards_but_no_training_wants_freezes_and_kills_nobody(
    stage: Stage,
) -> None:
    shim, _ = begin(stage, LISTENER)
    for signum in KEPT_BACK:
        os.kill(shim, signum)
    stage.daemon.say(SendSignal(signal.SIGUSR1))
    assert stage.daemon.hear(SignalSent) == SignalSent(signal.SIGUSR1, "daemon")
    assert stage.wait_note("signal") == ["10"]


def test_a_training_that_a_signal_ended_is_told_from_one_that_ended_by_itself(
    stage: Stage,
) -> None:
    shim, _ = begin(stage, NOTES + 'note("ready", os.getpid()); wait()')
    os.kill(shim, signal.SIGTERM)
    stage.daemon.hear(SignalSent)
    assert os.WTERMSIG(stage.daemon.hear(Exited).status) == signal.SIGTERM
    assert ended(stage) == -signal.SIGTERM


def test_a_signal_after_the_training_has_ended_is_for_nobody(stage: Stage) -> None:
    shim, _ = begin(stage, FAMILY + "sys.exit(0)")
    stage.daemon.hear(Exited)
    os.kill(shim, signal.SIGUSR1)
    stage.daemon.say(SendSignal(signal.SIGUSR1, once=False))
    stage.daemon.say(KillTree())
    assert [type(message) for message in stage.daemon.hear_all()] == [TreeGone]


# --- the tree -------------------------------------------------------------------------------------
def test_the_whole_tree_is_killed_at_once_daemonised_processes_too(stage: Stage) -> None:
    _, main = begin(stage, FAMILY + "wait()")
    tree = [main, *map(int, stage.notes("child") + stage.notes("daemon"))]
    assert len(tree) == 4
    stage.daemon.say(KillTree())
    assert stage.daemon.hear(Exited).status == signal.SIGKILL
    assert stage.daemon.hear(TreeGone).killed == 4
    assert not any(map(lives, tree))
    assert ended(stage) == -signal.SIGKILL


def test_processes_that_outlive_the_training_are_killed_after_the_linger_time(
    stage: Stage,
) -> None:
    begin(stage, FAMILY + "sys.exit(3)", linger_seconds=0.2)
    left = list(map(int, stage.notes("child") + stage.notes("daemon")))
    assert os.waitstatus_to_exitcode(stage.daemon.hear(Exited).status) == 3
    assert stage.daemon.hear(TreeGone).killed == 3
    assert not any(map(lives, left))
    assert ended(stage) == 3, "the end of the training counts, not that of its leftovers"


def test_the_tree_is_gone_only_when_the_last_process_has_left_by_itself(stage: Stage) -> None:
    begin(stage, FAMILY + "sys.exit(0)")
    stage.daemon.hear(Exited)
    shim = stage._shims[0]
    *first, last = map(int, stage.notes("child") + stage.notes("daemon"))
    for pid in first:
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
    assert shim.poll() is None
    os.kill(last, signal.SIGKILL)
    assert stage.daemon.hear(TreeGone).killed == 0
    assert ended(stage) == 0


def test_a_word_to_kill_counts_also_when_the_training_ends_in_the_same_moment(
    stage: Stage,
) -> None:
    shim, main = begin(stage, FAMILY + "wait()")
    left = list(map(int, stage.notes("child") + stage.notes("daemon")))
    os.kill(shim, signal.SIGSTOP)
    stage.daemon.say(KillTree())
    os.kill(main, signal.SIGKILL)
    wait_gone(main)
    os.kill(shim, signal.SIGCONT)
    stage.daemon.hear(Exited)
    for pid in left:
        wait_gone(pid)  # and not after the minute of linger
    assert stage.daemon.hear(TreeGone).killed == 3


def test_a_training_that_was_given_to_somebody_else_meanwhile_is_killed(stage: Stage) -> None:
    begin(stage, FAMILY + "wait()")
    stage.daemon.say(Refuse(75, "this run was given to somebody else"))
    assert stage.daemon.hear(Exited).status == signal.SIGKILL
    assert stage.daemon.hear(TreeGone).killed == 4


def test_a_training_dies_with_its_shim(stage: Stage) -> None:
    shim, main = begin(stage, LISTENER)
    os.kill(shim, signal.SIGKILL)
    wait_gone(main)


# --- the daemon -----------------------------------------------------------------------------------
def test_a_training_does_not_need_the_daemon(stage: Stage) -> None:
    _, main = begin(stage, LISTENER)
    stage.daemon.die()
    os.kill(main, signal.SIGUSR1)
    stage.wait_note("signal")
    os.kill(main, signal.SIGKILL)
    assert ended(stage) == -signal.SIGKILL
    assert stage.exit_record()["status"] == signal.SIGKILL


def test_the_shim_comes_back_to_a_restarted_daemon_with_its_training(stage: Stage) -> None:
    shim, main = begin(stage, LISTENER)
    stage.daemon.die()
    stage.daemon.come_back()
    hello = stage.daemon.greet()
    assert (hello.pid, hello.child_pid, hello.status) == (shim, main, None)
    assert (hello.agent, hello.run_id) == ("token", "r1")
    stage.daemon.say(SendSignal(signal.SIGUSR1))
    assert stage.daemon.hear(SignalSent) == SignalSent(signal.SIGUSR1, "daemon")
    stage.daemon.say(KillTree())
    assert stage.daemon.hear(Exited).status == signal.SIGKILL
    assert stage.daemon.hear(TreeGone).killed == 1


def test_a_restarted_daemon_is_told_of_a_training_that_ended_meanwhile(stage: Stage) -> None:
    shim, main = begin(stage, FAMILY + "wait()")
    os.kill(shim, signal.SIGSTOP)  # so that it has no chance to tell the old daemon
    stage.daemon.die()
    os.kill(main, signal.SIGKILL)
    stage.daemon.come_back()
    os.kill(shim, signal.SIGCONT)
    hello = stage.daemon.greet()
    assert hello.child_pid == main
    # In the hello, or right after it when the shim was stopped in the middle of its reconnection.
    status = stage.daemon.hear(Exited).status if hello.status is None else hello.status
    assert status == signal.SIGKILL
    stage.daemon.say(KillTree())
    assert stage.daemon.hear(TreeGone).killed == 3


def test_a_restarted_daemon_is_told_that_the_training_was_to_end(stage: Stage) -> None:
    begin(stage, LISTENER)
    stage.daemon.say(SendSignal(signal.SIGUSR1))  # of a person: it means no end
    stage.wait_note("signal")
    stage.daemon.hang_up()
    assert stage.daemon.greet().told_to_end == ""
    stage.daemon.say(SendSignal(signal.SIGTERM, preempt=True))
    stage.wait_note("signal", count=2)
    stage.daemon.hang_up()
    assert stage.daemon.greet().told_to_end == "preempt"
    stage.daemon.say(KillTree())
    assert stage.daemon.hear(Exited).status == signal.SIGKILL
    assert stage.exit_record()["told_to_end"] == "kill"


def test_a_signal_that_an_old_daemon_passed_on_is_not_passed_on_for_a_new_one(
    stage: Stage,
) -> None:
    begin(stage, LISTENER)
    stage.daemon.say(SendSignal(signal.SIGTERM))
    stage.wait_note("signal")
    stage.daemon.hang_up()
    stage.daemon.greet()
    stage.daemon.say(SendSignal(signal.SIGTERM))
    stage.daemon.say(SendSignal(signal.SIGUSR2))
    assert stage.daemon.hear(SignalSent) == SignalSent(signal.SIGUSR2, "daemon")
    assert stage.wait_note("signal", count=2) == ["15", "12"]


def test_a_daemon_that_reads_nothing_holds_no_training_up(stage: Stage) -> None:
    """The hello alone is more than the socket takes."""
    shim = stage.start([*PYTHON, NOTES + 'note("started")', *["x" * 100_000] * 10])
    stage.daemon.accept()
    stage.go()
    stage.wait_note("started")
    assert shim.wait(SECONDS) == 0
    assert stage.exit_record()["status"] == 0


def test_nonsense_of_a_daemon_is_passed_over_by_a_living_training(stage: Stage) -> None:
    begin(stage, LISTENER)
    stage.daemon.say_raw(b'{"do": "dance"}\n{"do": "signal"}\n{}\n\n[1]\n7\n')
    stage.daemon.say_raw(json.dumps({"do": "signal", "signal": 10}).encode())
    stage.daemon.say_raw(b"\n")
    assert stage.daemon.hear(SignalSent).signal == 10


def test_a_start_that_failed_is_told_although_the_daemon_reads_late(stage: Stage) -> None:
    shim = stage.start(["./absent"])
    stage.daemon.greet()
    stage.go()
    assert shim.wait(SECONDS) == 127
    stage.daemon.hear(StartFailed)
