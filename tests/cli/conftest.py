"""The daemon of the control tests, for the client's tests."""

from tests.control.conftest import daemon, place, telemetry

__all__ = ["daemon", "place", "telemetry"]
