"""The gateway's place on the loopback interface, taken before anybody is told of it.

Owns the listening socket until the gateway serves on it. Agents need their addresses before the
gateway needs its agents.
"""

import socket


class Endpoint:
    """A port that only this machine reaches."""

    def __init__(self) -> None:
        """Raises OSError when there is no port to be had."""
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.bind(("127.0.0.1", 0))
        self._port = self.listener.getsockname()[1]

    def address(self, token: str) -> str:
        """The base URL for the agent with this token."""
        return f"http://127.0.0.1:{self._port}/a/{token}"
