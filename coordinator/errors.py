"""All errors that we raise on purpose. Each tells who is at fault and has its data in fields.

Owns the messages a user reads. A message is one line, names the file, key or flag and says what to
do. This module must not import another module of ours.
"""


class CoordinatorError(Exception):
    """Base of all: `exit_code` is what an entry point exits with."""

    exit_code = 1


class UserError(CoordinatorError):
    """The user's configuration, command line or account is at fault; a restart cannot help."""

    exit_code = 2


class PeerError(CoordinatorError):
    """W&B, Redis or another process is at fault; a retry may succeed."""


class ConfigError(UserError):
    """A configuration value is wrong: `where` names the file and key, flag or variable."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class ControlSocketError(UserError):
    """The control socket cannot be used: its path or group is wrong, or another daemon has it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"control socket {path}: {problem}")
        self.path = path
        self.problem = problem


class ControlError(CoordinatorError):
    """A command of coordinatorctl failed; `exit_code` is one of docs/control.md."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ConnectionLostError(ControlError):
    """The daemon closed the connection without answering, or did not answer in time."""
