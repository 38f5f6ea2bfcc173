"""coordinatorctl: the command line that talks to the daemon through its control socket.

Owns the interface for users and scripts. It must start fast: each command loads only what it needs,
as listed in tests/cli/test_imports.py. `main` is the entry point.
"""

from coordinator.cli.start import main

__all__ = ["main"]
