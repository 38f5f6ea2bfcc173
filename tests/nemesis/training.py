"""A training of the short form: starts in milliseconds and keeps its own record.

Owns one file, RECORDS/RUN.PID: a line of JSON about its begin, then one line of fixed length with
the last moment (CLOCK_MONOTONIC, nanoseconds) at which it lived and its state, written over and
over. Standard library only. It is started ahead of need and waits for its orders: a
stack that dies before it gives them has started nothing.
"""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress

BEAT_SECONDS = 0.01
"""How exactly the end of a killed training is known."""


def main() -> None:
    """Live as the orders say, which come on standard input; without any, not at all."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _frame: asked.append(signum))
    line = sys.stdin.readline()
    if not line:
        return
    orders = json.loads(line)
    began = time.monotonic_ns()
    facts = {name: orders[name] for name in ("run", "node", "fence", "token")}
    head = json.dumps({**facts, "pid": os.getpid(), "began": began}).encode() + b"\n"
    path = f"{orders['records']}/{orders['run']}.{os.getpid()}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, head + last_word(began, "alive"))

    def beat(state: str) -> None:
        os.pwrite(file, last_word(time.monotonic_ns(), state), len(head))

    driver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    driver.connect(orders["driver"])
    tell(driver, {**facts, "what": "begin", "pid": os.getpid()})
    end = time.monotonic() + orders["seconds"]
    while time.monotonic() < end and not asked:
        beat("alive")
        time.sleep(BEAT_SECONDS)
    state = "preempted" if asked else orders["ending"]
    if state == "crashed":
        os.kill(os.getpid(), signal.SIGKILL)
    tell(driver, {**facts, "what": "end", "pid": os.getpid(), "state": state})
    end = time.monotonic() + orders["closing"]
    while time.monotonic() < end:  # the server knows that it ended, but it is not gone yet
        beat("alive")
        time.sleep(BEAT_SECONDS)
    beat(state)


def last_word(at: int, state: str) -> bytes:
    """The second line of the record."""
    return b"%020d %-10s\n" % (at, state.encode())


def tell(driver: socket.socket, message: dict[str, object]) -> None:
    """Report to the server, as a W&B run does by itself; when it is gone, the play is over."""
    with suppress(OSError):
        driver.send(json.dumps(message).encode())


if __name__ == "__main__":
    main()
