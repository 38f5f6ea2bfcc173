"""Which GPUs this node may use, and which slot gets which."""

from coordinator.gpu.assign import assign, visible_gpus

__all__ = ["assign", "visible_gpus"]
