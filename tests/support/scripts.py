"""What the plays that are scripts have in common: their last lines."""

import sys
from collections.abc import Callable


def say(words: str) -> None:
    """Print at once."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def run(main: Callable[[], int]) -> None:
    """End with the exit code of `main`; with 130 when it was interrupted."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
