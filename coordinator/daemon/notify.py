"""Reports our state to systemd: sd_notify(3), a datagram to $NOTIFY_SOCKET if that is set."""

import os
import socket
from contextlib import suppress

import anyio

STARTED = "READY=1"


def notify(message: str) -> None:
    """Send `message`; does nothing without systemd. Never blocks."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in {"/", "@"}:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(message.encode(), address)


async def feed_watchdog() -> None:
    """Ping as often as the unit's WatchdogSec requires, until cancelled; sd_watchdog_enabled(3)."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant_for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not (microseconds.isdecimal() and meant_for_us):
        return
    while True:
        notify("WATCHDOG=1")
        await anyio.sleep(int(microseconds) / 1e6 / 3)
