"""The agent server: forks `wandb agent` processes from one that has already imported wandb.

Owns only the forking. It runs in the interpreter of the configured wandb command, so it needs only
what that environment has: the standard library from Python 3.7 on, and wandb. A forked
agent runs wandb's own command line, in a session of its own. The agent becomes a child of the
daemon, not of this process: the daemon waits for it, it dies with the daemon, and the end of this
process does not affect it. This process must never have a second thread: a fork could copy a lock
that is never released.

    agent_server.py WANDB_SCRIPT DAEMON_PID PADDING

Requests and answers are JSON lines on stdin and stdout. The first answer is sent without a request:
`{"wandb": VERSION, "eager": BOOL}`. Each request `{"argv": …, "env": …, "cwd": …, "output": …}` is
answered with `{"pid": PID}`, `{"failed": WHY}` (this fork), `{"stale": true}` (wandb has changed on
disk) or `{"refused": WHY}` (no agent can be forked here).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import signal
import sys
import time
from typing import Any, Dict, NoReturn

Message = Dict[str, Any]  # evaluated at run time, where Python may be 3.7

POLL_SECONDS = 0.05
"""Replaces `Agent.POLL_INTERVAL`, 5 s: how long an agent waits before each heartbeat."""
ADOPTION_SECONDS = 5.0
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
ARGUMENTS = slice(45, 47)
"""arg_start and arg_end, fields 48 and 49 of /proc/PID/stat, counted after the name; proc(5)."""
LAZY = (
    "encodings.idna",
    "http.client",
    "multiprocessing.queues",
    "multiprocessing.synchronize",
    "requests",
    "stringprep",
    "urllib3.contrib",
    "wandb.apis.internal",
    "wandb.apis.public.sweeps",
    "wandb.sdk.launch.sweeps.utils",
    "wandb.sdk.lib.gitlib",
    "wandb.sdk.lib.printer",
    "wandb.sdk.lib.service.service_connection",
    "wandb.sdk.lib.service_connection",
    "wandb.sdk.service.service",
    "wandb.sdk.wandb_login",
    "yaml",
)
"""What an agent imports between its start and its first run, in any version; found by comparing
`sys.modules`. If one is missing, each agent imports it itself."""
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve until stdin ends; in a forked agent, run wandb's command line and end with it."""
    script, daemon = sys.argv[1], int(sys.argv[2])
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(2, 1)  # what wandb prints is not an answer
    try:
        server = Server(script, daemon)
    except BaseException as error:  # on any error, agents are executed instead
        say(answers, {"refused": f"wandb cannot be imported: {type(error).__name__}: {error}"})
        os._exit(1)
    say(answers, {"wandb": server.version, "eager": server.eager})
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        answer = server.fork()
        if answer is None:
            requests.close()
            os.close(answers)
            server.become_agent(request)
        else:
            say(answers, answer)
    os._exit(0)


def say(answers: int, message: Message) -> None:
    """Answer with one line."""
    os.write(answers, json.dumps(message).encode() + b"\n")


class Server:
    """wandb, imported once."""

    def __init__(self, script: str, daemon: int) -> None:
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path[0] = os.path.dirname(
                os.path.realpath(script)
            )  # as when the script itself runs
        import wandb
        from wandb import wandb_agent
        from wandb.cli.cli import cli

        for name in LAZY:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        self.cli = cli
        self.version = wandb.__version__
        self.script = script
        self.daemon = daemon
        agent: Any = getattr(wandb_agent, "Agent", None)
        self.eager = hasattr(agent, "POLL_INTERVAL")
        if self.eager:
            agent.POLL_INTERVAL = POLL_SECONDS
        self.files = {script: stamp(script)}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if name.partition(".")[0] == "wandb" and path:
                self.files[path] = stamp(path)
        gc.collect()
        gc.freeze()  # otherwise each collection in an agent would copy these pages

    def fork(self) -> Message | None:
        """Fork one agent; the answer to the daemon, or None in the new process."""
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            return {"refused": f"wandb {self.version} starts {threads - 1} threads when imported"}
        if any(stamp(path) != seen for path, seen in self.files.items()):
            return {"stale": True}
        try:
            pid = fork_away()
        except OSError as error:
            return {"failed": f"fork: {error.strerror}"}
        return {"pid": pid} if pid else None

    def become_agent(self, request: Message) -> NoReturn:
        """Run wandb's command line in this forked process, as its script would."""
        self.await_daemon()
        os.setsid()
        argv = [self.script, *request["argv"]]
        os.environ.clear()
        os.environ.update(request["env"])
        redirect(request["output"])
        retitle([sys.executable, *argv])
        try:
            os.chdir(request["cwd"])
        except OSError as error:
            sys.stderr.write(f"{error.filename}: {error.strerror}\n")
            sys.exit(127)
        sys.argv = argv
        sys.exit(self.cli())

    def await_daemon(self) -> None:
        """Return when we are a child of the daemon and tied to its life."""
        deadline = time.monotonic() + ADOPTION_SECONDS
        while os.getppid() != self.daemon:
            if time.monotonic() > deadline:  # it has ended
                os._exit(1)
            time.sleep(0.0005)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self.daemon:
            os._exit(1)


def fork_away() -> int:
    """Fork a process that is not our child; its pid, or 0 in the new process. Raises OSError.

    An intermediate process forks it and exits at once, so the next subreaper above us, the daemon,
    becomes its parent (prctl(2), PR_SET_CHILD_SUBREAPER).
    """
    receiver, sender = os.pipe()
    os.set_blocking(receiver, False)
    with os.fdopen(receiver, "rb", 0) as pipe, os.fdopen(sender, "wb", 0) as say:
        between = os.fork()
        if between == 0:
            try:
                pid = os.fork()
            except OSError as error:
                pid = -(error.errno or errno.EAGAIN)
            if pid == 0:
                return 0
            say.write(b"%d" % pid)
            os._exit(0)
        os.waitpid(between, 0)
        pid = int(pipe.read(32) or 0)  # nothing: it was killed before it could write
    if pid <= 0:
        raise OSError(-pid or errno.ECHILD, os.strerror(-pid or errno.ECHILD))
    return pid


def stamp(path: str) -> tuple[int, int, int] | None:
    """A value that changes when a file is replaced; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def redirect(output: str) -> None:
    """Append our output to `output`, and read nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(nothing)
    os.close(file)


def retitle(argv: list[str]) -> None:
    """Make ps show the command line of the agent, as far as it fits.

    The room is the length of our own arguments, which the daemon pads.
    """
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[ARGUMENTS])
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    if 0 < start < end:
        room = end - start
        ctypes.memmove(start, words[: room - 1].ljust(room, b"\0"), room)
    libc.prctl(PR_SET_NAME, b"wandb", 0, 0, 0)


if __name__ == "__main__":
    main()
