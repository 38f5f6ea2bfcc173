"""The exit codes of coordinatorctl; docs/control.md documents them.

Owns the numbers. They must never change their meaning.
"""

import enum


class ExitCode(enum.IntEnum):
    """What the process exits with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    TIMED_OUT = 4
    DEGRADED = 5
    REFUSED = 6
    INTERRUPTED = 130
    """128 + SIGINT, as in shells."""
    OUTPUT_CLOSED = 141
    """128 + SIGPIPE: the reader of our output has exited, as in `| head`."""
