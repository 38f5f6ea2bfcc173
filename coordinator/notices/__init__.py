"""Preemption notices from outside: signals to the daemon, and notices of clouds."""

from coordinator.notices.clouds import watch_clouds
from coordinator.notices.signals import watch_signals

__all__ = ["watch_clouds", "watch_signals"]
