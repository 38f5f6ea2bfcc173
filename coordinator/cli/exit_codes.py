"""The exit codes of coordinatorctl; docs/control.md promises them.

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
    """128 + SIGINT, as shells have it."""
    OUTPUT_CLOSED = 141
    """128 + SIGPIPE: the reader of our output has left, as in `| head`."""
