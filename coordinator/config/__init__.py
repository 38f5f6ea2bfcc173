"""Configuration: its keys, its sources, and the errors in it."""

from coordinator.config.load import FLAGS, load
from coordinator.config.model import Config

__all__ = ["FLAGS", "Config", "load"]
