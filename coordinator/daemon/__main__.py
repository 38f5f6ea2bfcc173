"""`python -m coordinator.daemon` is coordinatord."""

from coordinator.daemon.command import main

main()
