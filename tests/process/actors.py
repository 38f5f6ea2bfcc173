"""Programs that tests start: sleepers, families, and a stand-in for the daemon.

Run as `python actors.py NAME ARGUMENT…`. Owns nothing; every process of it ends by itself when its
standard input does, unless it is killed before.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio

from coordinator.process import tree
from coordinator.process.spawn import spawn

SLEEPER = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]


def say(*words: object) -> None:
    """One line for the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def daemon(output: str, ignored: str) -> None:
    """Start a child as coordinatord does, tell its pid, and wait to be killed."""
    for number in ignored.split(","):
        signal.signal(int(number), signal.SIG_IGN)

    async def run() -> None:
        child = await spawn(SLEEPER, env=os.environ, cwd=Path("/"), output=Path(output))
        say(child.pid)
        await child.wait()

    anyio.run(run)


def escapee() -> int:
    """A double-forked process in a session of its own; its pid."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.close(writer)
            os.execv(SLEEPER[0], SLEEPER)
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    return int(os.read(reader, 16))


def family() -> None:
    """An escapee, a child in our group, one in a group of its own, and one that was stopped."""
    child = subprocess.Popen(SLEEPER)  # noqa: TID251 - no event loop here
    other = subprocess.Popen(SLEEPER, process_group=0)  # noqa: TID251
    stopped = subprocess.Popen(SLEEPER)  # noqa: TID251
    os.kill(stopped.pid, signal.SIGSTOP)
    say(os.getpid(), child.pid, other.pid, stopped.pid, escapee())
    signal.pause()


def reaper() -> None:
    """Become a subreaper; tell which ended children were collected and what was left alone."""
    tree.become_subreaper()
    known = subprocess.Popen(["sh", "-c", "exit 7"])  # noqa: TID251
    living = subprocess.Popen(SLEEPER)  # noqa: TID251
    orphan = escapee()
    os.kill(orphan, signal.SIGKILL)
    ended = {known.pid, orphan}
    while not ended <= {seen.pid for seen in tree.processes() if seen.state == "Z"}:
        os.sched_yield()
    collected = tree.reap(tree.ended_children() - {known.pid})
    say(collected == [orphan], known.wait(), living.poll(), tree.reap(tree.ended_children()))
    living.kill()
    living.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["daemon", where, numbers]:
            daemon(where, numbers)
        case ["family"]:
            family()
        case ["reaper"]:
            reaper()
        case _:
            raise SystemExit(f"no such actor: {sys.argv[1:]}")
