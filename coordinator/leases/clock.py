"""The two clocks of the lease layer: this machine's boot time and an estimate of the server's.

Owns the reading of CLOCK_BOOTTIME, which also counts suspension, so a laptop lid or a paused
virtual machine cannot make a lease look fresh. It must never read the local wall clock.
"""

import time


def boottime_seconds() -> float:
    """CLOCK_BOOTTIME, seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServerClock:
    """The server's wall clock as of its last answer, carried on by the boot time.

    The estimate lags by the time that the answer took to arrive, so a not-after time made from it
    errs on the early side: an acquire is refused as late rather than granted to nobody.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def set(self, server_ms: int) -> None:
        """`server_ms` arrived just now."""
        self._offset_ms = server_ms - boottime_seconds() * 1000

    @property
    def now_ms(self) -> int:
        """The server's time now, or a little earlier; 0 before the first `set`."""
        return self.not_after_ms(0.0)

    def not_after_ms(self, seconds: float) -> int:
        """Server time `seconds` from now; 0, which every server refuses, before the first `set`."""
        if self._offset_ms is None:
            return 0
        return int(self._offset_ms + (boottime_seconds() + seconds) * 1000)
