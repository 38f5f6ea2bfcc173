"""coordinatorctl: the command line that talks to the daemon through its control socket.

Owns what a person or a script types and reads. It must start fast: no redis, no wandb, no aiohttp,
and rich only where a table is printed. `main` is the entry point.
"""

from coordinator.cli.entry import main

__all__ = ["main"]
