"""A small program that stands where coordinatord or scontrol does, and writes down what it sees.

Its first line on RECORD is its arguments and COORDINATOR_* variables; then one line a signal. It
ends with exit code RECORD_EXIT, RECORD_LINGER seconds after its first signal, or at once with
RECORD_WAIT=no. SIGUSR2 tells it to end at once.
"""

import json
import os
import signal
import sys
import time

WATCHED = {signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2}


def note(value: object) -> None:
    """Append one line to the record, in one write."""
    fd = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (json.dumps(value) + "\n").encode())
    os.close(fd)


def main() -> int:
    """Record until told to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    mine = {name: value for name, value in os.environ.items() if name.startswith("COORDINATOR_")}
    note({"argv": sys.argv[1:], "env": mine, "pid": os.getpid()})
    ends = None if os.environ.get("RECORD_WAIT") != "no" else 0.0
    while ends is None or time.monotonic() < ends:
        left = 60.0 if ends is None else max(0.0, ends - time.monotonic())
        seen = signal.sigtimedwait(WATCHED, left)
        if seen is None or seen.si_signo == signal.SIGUSR2:
            break
        note({"signal": signal.Signals(seen.si_signo).name})
        ends = ends or time.monotonic() + float(os.environ.get("RECORD_LINGER", "0"))
    return int(os.environ.get("RECORD_EXIT", "0"))


if __name__ == "__main__":
    sys.exit(main())
