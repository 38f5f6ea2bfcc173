"""The user's W&B account as wandb itself would find it: address, key, executable, requests."""

from coordinator.wandb_account.executable import AgentCommand, find
from coordinator.wandb_account.login import Login, find_login, proxy_for
from coordinator.wandb_account.questions import Account

__all__ = ["Account", "AgentCommand", "Login", "find", "find_login", "proxy_for"]
