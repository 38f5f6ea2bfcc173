"""coordinatord: the entry point and the composition root."""

from coordinator.daemon.command import main

__all__ = ["main"]
