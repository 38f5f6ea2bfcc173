"""coordinatorctl: the command line that talks to the daemon through its control socket.

Owns what a person or a script types and reads. It must start fast: each command loads what it
needs and nothing else, as tests/cli/test_imports.py lists. `main` is the entry point.
"""

from coordinator.cli.start import main

__all__ = ["main"]
