"""`python -m coordinator.cli`."""

from coordinator.cli.entry import main

main()
