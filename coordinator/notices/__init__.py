"""Preemption notices from outside: signals to the daemon."""

from coordinator.notices.signals import watch_signals

__all__ = ["watch_signals"]
