"""A loopback HTTP proxy between each agent and the W&B API: claims wait here for a slot."""

from coordinator.gateway.desk import Desk, IdleBeat
from coordinator.gateway.endpoint import Endpoint
from coordinator.gateway.server import Gateway

__all__ = ["Desk", "Endpoint", "Gateway", "IdleBeat"]
