"""SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 to the daemon are preemption notices.

Only receives them; the pool decides. SIGHUP is caught so that closing a terminal does not end the
daemon and leave its trainings alone.
"""

import signal
from collections.abc import Callable, Mapping

import anyio
import structlog
from anyio.abc import TaskStatus

from coordinator.core.signals import signal_name, signal_number

log = structlog.get_logger()


async def watch_signals(
    mapping: Mapping[str, str],
    notice: Callable[[int, str], None],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call `notice(outgoing signal number, incoming signal's name)` for each that arrives."""
    numbers = {signal_number(name): signal_number(out) for name, out in mapping.items()}
    watched = [signal.Signals(number) for number in numbers]
    with anyio.open_signal_receiver(*watched, signal.SIGHUP) as received:
        task_status.started()
        async for signum in received:
            if signum in numbers:
                notice(numbers[signum], signal_name(signum))
            else:
                log.info("signal_ignored", signal=signal_name(signum))
