"""The control socket: how coordinatorctl and scripts talk to the daemon.

Owns the HTTP server on a Unix socket and its access control. It decides nothing: each command goes
to the handler that the daemon passes in.
"""

from coordinator.control.server import Handler, serve
from coordinator.control.streams import Logs
from coordinator.core.protocol import LogLine

__all__ = ["Handler", "LogLine", "Logs", "serve"]
