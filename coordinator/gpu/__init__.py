"""The GPUs that this node can use, and their assignment to slots."""

from coordinator.gpu.assign import assign, visible_gpus

__all__ = ["assign", "visible_gpus"]
