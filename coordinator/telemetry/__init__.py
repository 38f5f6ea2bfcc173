"""Telemetry: every lifecycle step as one structured event.

Owns the path of an event from `structlog.get_logger().info(...)` to stderr, to the events file and
to followers. Secrets must never pass it, and its own errors must never end the daemon.
The names are loaded on first use: structlog costs a quarter of a second, and coordinatorctl
needs only `line`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.telemetry.hub import Event, Subscription
    from coordinator.telemetry.setup import Telemetry, configure

__all__ = ["Event", "Subscription", "Telemetry", "configure"]


def __getattr__(name: str) -> Any:
    """PEP 562: import the module of a public name on first use."""
    if name in {"Event", "Subscription"}:
        from coordinator.telemetry import hub  # noqa: PLC0415

        return getattr(hub, name)
    if name in {"Telemetry", "configure"}:
        from coordinator.telemetry import setup  # noqa: PLC0415

        return getattr(setup, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
