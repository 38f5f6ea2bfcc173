"""Puts the server on a leash, then becomes it: run as `python -I -S leash.py PARENT PROGRAM ...`.

Owns the parent-death signal. Standard library only, and no import of ours: it runs without a site
directory, for a few milliseconds. It must never return.

The kernel ties the signal to the *thread* that started this process: the daemon starts it from the
thread of its loop. SIGKILL, since a stopped or wedged server must go too; nothing is lost by it,
the append-only file has everything that was answered. An orderly stop is the daemon's own act.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def main() -> None:
    """Exit 3 when the parent is gone already, 4 when the kernel refuses, else become the server."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.exit(4)
    if os.getppid() != parent:
        sys.exit(3)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(program, sys.argv[2:])  # noqa: S606 - the program was found by us, no shell


if __name__ == "__main__":
    main()
