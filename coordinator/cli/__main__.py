"""`python -m coordinator.cli`."""

from coordinator.cli.start import main

main()
