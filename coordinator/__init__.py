"""wandb-coordinator: one daemon that makes a pool of real wandb sweep agents behave."""

__version__ = "0.1.0"
