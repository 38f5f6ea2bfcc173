"""The run shim: runs between one `wandb agent` and one training process.

Owns exactly one training process: starts it when the daemon permits, passes signals on, waits, and
reports the true wait status. Standard library only, because it starts before every training
(`python -I -S shim.py COMMAND…`) and must be small and fast. It must never outlive its tree, never
start a training that was not released to it, and never need the daemon once the training runs.

Life: connect -> hello -> go | refuse -> start -> wait -> exit file, `exited` -> tree gone -> end as
the training did. The socket is non-blocking, so a stuck daemon cannot delay a training.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time

SOCKET_VARIABLE = "COORDINATOR_RUN_SHIM"
AGENT_VARIABLE = "COORDINATOR_RUN_AGENT"
REFUSED = 75  # EX_TEMPFAIL of sysexits.h: another holder trains this run, or the daemon is gone
NOT_STARTED = 127  # exit code of shells for a command that cannot be executed
HELLO_SECONDS = 60.0
RECONNECT_SECONDS = 1.0
KILL_POLL_SECONDS = 0.02
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
HELD_BACK = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH, signal.SIGALRM)
"""An agent that forwards "all signals" sends these too; they would freeze or kill us."""
libc = ctypes.CDLL(None, use_errno=True)


class Link:
    """The connection to the daemon: JSON lines both ways, restored if possible."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.sock: socket.socket | None = None
        self.received = b""
        self.unsent = b""

    def connect(self, hello: dict[str, object]) -> bool:
        """Connect and send hello; False if nothing listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(5.0)
            sock.connect(self.path)
        except OSError:
            sock.close()
            return False
        sock.setblocking(False)
        self.sock, self.received, self.unsent = sock, b"", b""
        self.say(hello)
        return True

    def say(self, message: dict[str, object]) -> None:
        """Queue one message and send as much as the socket accepts."""
        self.unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what is queued; never waits for a lost daemon."""
        if self.sock is None:
            return
        try:
            while self.unsent:
                sent = self.sock.send(self.unsent)
                self.unsent = self.unsent[sent:]
        except BlockingIOError:
            return
        except OSError:
            self.drop()

    def read(self) -> list[dict[str, object]]:
        """Complete messages that have arrived."""
        if self.sock is None:
            return []
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.drop()
            return []
        *lines, self.received = (self.received + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def drop(self) -> None:
        """Forget the connection."""
        if self.sock is not None:
            self.sock.close()
        self.sock = None


class Shim:
    """One training process and what we know of it."""

    def __init__(self, command: list[str], link: Link, agent: str) -> None:
        self.command = command
        self.link = link
        self.agent = agent
        self.child: int | None = None
        self.status: int | None = None
        self.sent: set[int] = set()
        self.told_to_end = ""
        self.killed: set[int] = set()
        self.linger_seconds = 0.0
        self.kill_at: float | None = None
        self.retry_at = 0.0
        self.exit_file = ""
        self.cgroup = ""
        self.caught: list[int] = []
        self.wakeup = socket.socketpair()
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    # --- signals ------------------------------------------------------------------------------
    def install_handlers(self) -> None:
        """Turn signals into entries of `caught`, waking the loop through a socket pair."""
        for end in self.wakeup:
            end.setblocking(False)
        signal.set_wakeup_fd(self.wakeup[1].fileno(), warn_on_full_buffer=False)
        for signum in (*PASSED_ON, *HELD_BACK, signal.SIGCHLD):
            signal.signal(signum, lambda number, _frame: self.caught.append(number))

    def pass_on(self, signum: int, origin: str, *, once: bool) -> None:
        """Send `signum` to the main training process; `once`: not if it had it before."""
        if not signum or self.child is None or self.status is not None:
            return
        if once and signum in self.sent:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signum)
            self.sent.add(signum)
            self.link.say({"say": "signal_sent", "signal": signum, "origin": origin})

    def on_signals(self) -> None:
        """Handle signals caught since the last call."""
        with contextlib.suppress(BlockingIOError):
            self.wakeup[0].recv(4096)
        caught, self.caught = self.caught, []
        for signum in caught:
            if signum in PASSED_ON and self.child is None:
                end_by_signal(signum)
            elif signum in PASSED_ON:
                self.pass_on(signum, "direct", once=True)

    # --- the training -------------------------------------------------------------------------
    def start(self, changes: dict[str, str | None]) -> None:
        """Fork and execute the training with `changes` to our environment; report the pid."""
        env = {key: value for key, value in os.environ.items() if key not in changes}
        env.update({key: value for key, value in changes.items() if value is not None})
        reader, writer = os.pipe()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            self.execute(env, writer, parent)
        os.close(writer)
        failed = os.read(reader, 16)
        os.close(reader)
        if failed:
            os.waitpid(child, 0)
            number = int(failed)
            text = f"{self.command[0]}: {os.strerror(number)}"
            sys.stderr.write(f"wandb-coordinator: cannot start {text}\n")
            self.link.say({"say": "start_failed", "error": text, "exit_code": NOT_STARTED})
            finish(self.link, NOT_STARTED)
        self.child = child
        self.link.say({"say": "started", "pid": child})

    def execute(self, env: dict[str, str], writer: int, parent: int) -> None:
        """In the child: become like a bare agent's child, then the training. Never returns."""
        try:
            os.setpgid(0, 0)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            if self.cgroup:
                with (
                    contextlib.suppress(OSError),  # convenient, not required
                    open(f"{self.cgroup}/cgroup.procs", "w", encoding="ascii") as procs,
                ):
                    procs.write("0")
            # subprocess.Popen of the agent does the same (restore_signals).
            for signum in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            os.execvpe(self.command[0], self.command, env)
        except OSError as error:
            os.write(writer, str(error.errno or errno.EIO).encode())
        finally:
            os._exit(NOT_STARTED)

    def reap(self) -> bool:
        """Collect ended children; True if none is left.

        We are a child subreaper, so without children the whole tree is gone.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.child:
                self.on_exit(status)

    def on_exit(self, status: int) -> None:
        """Write the exit file, *then* report, so that the file exists when the daemon knows."""
        self.status = status
        if self.kill_at is None:  # an order to kill remains valid
            self.kill_at = time.monotonic() + self.linger_seconds
        if self.exit_file:
            record = {"status": status, "pid": self.child, "told_to_end": self.told_to_end,
                      "ended": time.time()}  # fmt: skip # noqa: TID251 - a record for people
            scratch = f"{self.exit_file}.{os.getpid()}"
            with contextlib.suppress(OSError):
                with open(scratch, "w", encoding="utf-8") as file:
                    json.dump(record, file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(scratch, self.exit_file)
        self.link.say({"say": "exited", "status": status})

    def kill_tree(self) -> None:
        """SIGKILL every descendant, deepest first: wandb-core must not report its parent's end."""
        for pid in reversed(descendants(os.getpid())):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                self.killed.add(pid)

    # --- the daemon ---------------------------------------------------------------------------
    def hello(self) -> dict[str, object]:
        """The hello message, at first and after each reconnection."""
        return {
            "say": "hello",
            "agent": self.agent,
            "run_id": os.environ.get("WANDB_RUN_ID", ""),
            "pid": os.getpid(),
            "child_pid": self.child,
            "status": self.status,
            "told_to_end": self.told_to_end,
            "argv": self.command,
            "cwd": os.getcwd(),
        }

    def obey(self, message: dict[str, object]) -> None:
        """Execute a message of the daemon; unknown messages of a newer daemon are ignored."""
        match message:
            case {"do": "go", "env": dict(env), "linger_seconds": int() | float() as linger} if (
                self.child is None
            ):
                self.linger_seconds = float(linger)
                self.exit_file = str(message.get("exit_file") or "")
                self.cgroup = str(message.get("cgroup") or "")
                self.start(env)
            case {"do": "refuse", "exit_code": int(code), "reason": reason}:
                sys.stderr.write(f"wandb-coordinator: refused: {reason}\n")
                if self.child is None:
                    finish(self.link, code)
                self.kill_at = 0.0
            case {"do": "signal", "signal": int(signum)}:
                if message.get("preempt") and self.status is None:
                    self.told_to_end = self.told_to_end or "preempt"
                self.pass_on(signum, "daemon", once=bool(message.get("once", True)))
            case {"do": "kill_tree"}:
                if self.status is None:
                    self.told_to_end = "kill"
                self.kill_at = 0.0
            case _:
                pass

    def keep_linked(self) -> None:
        """Try to reconnect to a restarted daemon from time to time."""
        now = time.monotonic()
        if self.link.sock is None and now >= self.retry_at:
            self.retry_at = now + RECONNECT_SECONDS
            self.link.connect(self.hello())

    def wait(self, seconds: float) -> None:
        """Sleep until a signal, a message or `seconds` have passed; handle what came."""
        readers = [self.wakeup[0].fileno()]
        if self.link.sock is not None:
            readers.append(self.link.sock.fileno())
        writers = readers[1:] if self.link.unsent else []
        select.select(readers, writers, [], seconds)
        self.link.flush()
        self.on_signals()
        for message in self.link.read():
            self.obey(message)

    def await_go(self) -> None:
        """Wait for permission to start. Without a daemon nothing may be trained: give up."""
        deadline = time.monotonic() + HELLO_SECONDS
        while self.child is None:
            if self.link.sock is None or time.monotonic() > deadline:
                sys.stderr.write("wandb-coordinator: not started: the coordinator is gone\n")
                raise SystemExit(REFUSED)
            self.wait(1.0)

    def watch(self) -> None:
        """From the start to the end of the process tree."""
        while not self.reap():
            self.keep_linked()
            overdue = self.kill_at is not None and time.monotonic() >= self.kill_at
            if overdue:
                self.kill_tree()
            self.wait(KILL_POLL_SECONDS if overdue else self.pause())
        self.link.say({"say": "tree_gone", "killed": len(self.killed)})

    def pause(self) -> float:
        """How long the loop may sleep: SIGCHLD and messages wake it anyway."""
        pause = RECONNECT_SECONDS if self.link.sock is None else 5.0
        if self.kill_at is not None:
            pause = min(pause, max(0.0, self.kill_at - time.monotonic()))
        return pause


def descendants(root: int) -> list[int]:
    """All processes below `root`, parents before children (proc(5), /proc/PID/stat, field 4)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def finish(link: Link, code: int) -> None:
    """Send the remaining messages, within a second, and exit with `code`."""
    deadline = time.monotonic() + 1.0
    while link.unsent and link.sock is not None and time.monotonic() < deadline:
        select.select([], [link.sock], [], 0.1)
        link.flush()
    raise SystemExit(code)


def end_by_signal(signum: int) -> None:
    """End like the training: by the same signal, without a core dump of our own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signum])
    os.kill(os.getpid(), signum)
    raise SystemExit(128 + signum)


def main() -> None:
    """Run the command line under the daemon's control, or directly if there is no daemon."""
    command = sys.argv[1:]
    path = os.environ.pop(SOCKET_VARIABLE, "")
    if not path:
        os.execvp(command[0], command)
    link = Link(path)
    shim = Shim(command, link, os.environ.pop(AGENT_VARIABLE, ""))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shim.install_handlers()
    link.connect(shim.hello())
    shim.await_go()
    shim.watch()
    status = shim.status or 0
    if os.WIFSIGNALED(status):
        with contextlib.suppress(SystemExit):
            finish(link, 0)
        end_by_signal(os.WTERMSIG(status))
    finish(link, os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
