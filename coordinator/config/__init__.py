"""Configuration: what can be set, where it comes from, what is wrong with it."""

from coordinator.config.load import FLAGS, load
from coordinator.config.model import Config

__all__ = ["FLAGS", "Config", "load"]
