"""The client of the control socket.

Owns the requests, and turns every failure into one line and an exit code. It must never retry a
command, which may have been executed. It must load neither an HTTP library nor msgspec itself,
because `status` needs neither.
"""

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coordinator import __version__
from coordinator.cli.exchange import Exchange, NotHttpError
from coordinator.cli.exit_codes import ExitCode
from coordinator.errors import ConnectionLostError, ControlError
from coordinator.state_dir import default_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordinator.core.protocol import RequestUnion

PROTOCOL_VERSION = 1
"""`core/protocol.py` has the same; a test compares them."""
ANSWER_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""A stream is never silent for more than a third of this: the daemon sends blank lines."""
_MAX_PATH_BYTES = 107
"""unix(7): 108 bytes with the terminating zero."""
_PROTOCOL_HEADER = "X-Coordinator-Protocol"
_VERSION_HEADER = "X-Coordinator-Version"
_OK = 200
CODES = {
    "done": ExitCode.DONE,
    "refused": ExitCode.REFUSED,
    "invalid": ExitCode.USAGE,
    "failed": ExitCode.FAILED,
}
"""The answers of core/protocol.py by their tags."""
_SHOWN_BYTES = 60
"""Bytes shown of an answer that cannot be read."""


class Done:
    """A successful answer of the daemon: `core/protocol.py` has the same with its types."""

    __slots__ = ("data", "message")

    def __init__(self, message: str, data: object) -> None:
        self.message = message
        self.data = data


class Client:
    """Talks to the daemon at one socket; each request uses its own connection."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if len(os.fsencode(self.path)) > _MAX_PATH_BYTES:
            raise ControlError(
                f"the socket path {path} is longer than {_MAX_PATH_BYTES} bytes, the system's "
                "limit; use a shorter --state-dir for the daemon, or --socket",
                ExitCode.USAGE,
            )

    def ask(self, request: "RequestUnion", timeout_seconds: float = ANSWER_SECONDS) -> Done:
        """Send one command and return its answer. Raises ControlError."""
        import msgspec  # noqa: PLC0415 - not for `status`

        try:
            body = msgspec.json.encode(request)
        except UnicodeEncodeError as error:
            raise ControlError("an argument is not valid UTF-8", ExitCode.USAGE) from error
        return self.post(body, timeout_seconds)

    def post(self, body: bytes, timeout_seconds: float = ANSWER_SECONDS) -> Done:
        """Send one command that is already JSON and return its answer. Raises ControlError."""
        with self._explained(), Exchange(self.path, timeout_seconds) as exchange:
            self._send(exchange, "POST", "/v1/command", body)
            return _done(exchange.body())

    def lines(self, route: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """The JSON lines of a stream; empty ones while nothing is new. Raises ControlError."""
        target = f"{route}?" + "&".join(f"{name}={_quoted(query[name])}" for name in query)
        with self._explained(), Exchange(self.path, SILENCE_SECONDS) as exchange:
            self._send(exchange, "GET", target, b"")
            if exchange.status != _OK:
                _done(exchange.body())
            for line in exchange.lines():
                if line.startswith(b'{"answer":'):
                    _done(line)
                yield line.strip()

    def peer_pid(self) -> int:
        """The daemon's process ID as seen from here, 0 if it cannot be seen."""
        with self._explained(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_SECONDS)
            sock.connect(self.path)
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int(struct.unpack("=iII", raw)[0])

    def _send(self, exchange: Exchange, method: str, target: str, body: bytes) -> None:
        headers = {_PROTOCOL_HEADER: str(PROTOCOL_VERSION), "Content-Type": "application/json"}
        exchange.send(method, target, headers, body)
        theirs = exchange.headers.get(_PROTOCOL_HEADER.lower())
        if theirs is None:
            raise ControlError(
                f"the process listening on {self.path} is not coordinatord; check --socket",
                ExitCode.FAILED,
            )
        if theirs != str(PROTOCOL_VERSION):
            version = exchange.headers.get(_VERSION_HEADER.lower(), "unknown")
            raise ControlError(
                f"the daemon (version {version}) speaks control protocol {theirs}, this "
                f"coordinatorctl (version {__version__}) speaks {PROTOCOL_VERSION}; use the "
                "coordinatorctl installed with the daemon",
                ExitCode.FAILED,
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the connection into ControlError."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
            raise ControlError(
                f"no daemon is running at {self.path}; start coordinatord, or give its socket "
                "with --socket",
                ExitCode.NOT_RUNNING,
            ) from error
        except PermissionError as error:
            raise ControlError(
                f"no permission to use {self.path}; run as the daemon's user or root, or join the "
                "group set in [control] group",
                ExitCode.REFUSED,
            ) from error
        except (TimeoutError, BlockingIOError) as error:
            raise ConnectionLostError(
                f"the daemon at {self.path} does not answer; a command already sent may still "
                "take effect: check coordinatorctl status and the daemon's log",
                ExitCode.TIMED_OUT,
            ) from error
        except (ConnectionError, EOFError) as error:
            raise ConnectionLostError(
                f"the daemon at {self.path} closed the connection without answering; it may have "
                "exited: check coordinatorctl status and the daemon's log",
                ExitCode.FAILED,
            ) from error
        except (NotHttpError, OSError) as error:
            what = error if isinstance(error, NotHttpError) else error.strerror or error
            raise ControlError(
                f"{self.path} cannot be used as a control socket: {what}; check --socket",
                ExitCode.FAILED,
            ) from error


def client_at(path: str | None) -> Client:
    """A client of the daemon at socket `path`; None: the default path.

    Raises ControlError for a path that is too long for a socket.
    """
    return Client(path or default_socket(os.environ))


def _quoted(value: str) -> str:
    """`value` for a query (RFC 3986, 2.1); what is not UTF-8 becomes a question mark."""
    return "".join(
        chr(byte) if chr(byte).isalnum() and byte < 0x80 else f"%{byte:02X}"  # noqa: PLR2004
        for byte in value.encode("utf-8", "replace")
    )


def record(text: bytes) -> dict[str, object]:
    """The JSON object in `text`. Raises ControlError if there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_understood(str(error)) from error
    if not isinstance(found, dict):
        raise _not_understood(f"{text[:_SHOWN_BYTES]!r}")
    return found


def _done(body: bytes) -> Done:
    """The answer in `body` if it is a successful one. Raises ControlError for all others."""
    answer = record(body)
    kind, message = answer.get("answer"), answer.get("message", "")
    if not isinstance(kind, str) or kind not in CODES or not isinstance(message, str):
        raise _not_understood(f"{body[:_SHOWN_BYTES]!r}")
    if code := CODES[kind]:
        raise ControlError(message, code)
    return Done(message, answer.get("data"))


def _not_understood(problem: str) -> ControlError:
    return ControlError(
        f"cannot read the daemon's answer ({problem}); use the coordinatorctl installed with the "
        "daemon",
        ExitCode.FAILED,
    )
