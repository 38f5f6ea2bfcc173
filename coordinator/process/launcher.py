"""Becomes another program that cannot outlive the daemon. Standard library only, run with `-I -S`.

`launcher.py PARENT_PID COMMAND…` asks the kernel for SIGKILL at the parent's end, resets signal
dispositions (an inherited SIG_IGN of SIGINT or SIGHUP would be kept across exec, see signal(7)) and
executes the command. anyio has no preexec_fn, and Python's is not safe with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Never returns: becomes the command, or exits 127 with the reason on stderr."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before prctl took effect
        sys.exit(1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming it is the purpose
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
