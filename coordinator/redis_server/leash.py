"""Ties the server to its parent, then becomes it: `python -I -S leash.py PARENT PROGRAM ...`.

Owns the parent-death signal. Standard library only, and no import of ours: it runs without a site
directory, for a few milliseconds. It must never return.

The kernel ties the signal to the *thread* that started this process: the daemon starts it from the
thread of its loop. It is SIGKILL, because a stopped or hanging server must go too. Nothing is
lost: the append-only file has everything that was answered. The daemon itself does an orderly stop.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def main() -> None:
    """Exit 3 if the parent is already gone, 4 if the kernel refuses, else become the server."""
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
