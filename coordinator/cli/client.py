"""The client of the control socket: HTTP over a unix socket with the standard library.

Owns the connection and turns everything that can go wrong with it into one line and an exit code.
Every read has a time-out. It must never retry a command: it may have been carried out.
"""

import http.client
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from coordinator import __version__
from coordinator.cli.exit_codes import ExitCode
from coordinator.core.protocol import (
    PROTOCOL_VERSION,
    Answer,
    Done,
    Failed,
    Invalid,
    Refused,
    RequestUnion,
)
from coordinator.errors import ConnectionLostError, ControlError

ANSWER_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""A stream is never silent for longer than a third of this: the daemon sends blank lines."""
_MAX_PATH_BYTES = 107
"""unix(7): 108 bytes with the terminating zero."""
_PROTOCOL_HEADER = "X-Coordinator-Protocol"
_VERSION_HEADER = "X-Coordinator-Version"


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to `path` instead of a host."""

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        """Connect to the unix socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


class Client:
    """Speaks to the daemon at one socket; each request is a connection of its own."""

    def __init__(self, path: Path) -> None:
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ControlError(
                f"the socket path {path} has more than {_MAX_PATH_BYTES} bytes, the most that the "
                "system allows; use a shorter --state-dir for the daemon, or --socket",
                ExitCode.USAGE,
            )
        self.path = path

    def ask(self, request: RequestUnion, timeout_seconds: float = ANSWER_SECONDS) -> Done:
        """Send one command and return its answer. Raises ControlError."""
        body = msgspec.json.encode(request)
        with (
            self._explained(),
            self._response("POST", "/v1/command", body, timeout_seconds) as response,
        ):
            return _done(response.read())

    def lines(self, route: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """The JSON lines of a stream, without the blank ones. Raises ControlError."""
        target = f"{route}?{urlencode(query)}"
        with self._explained(), self._response("GET", target, None, SILENCE_SECONDS) as response:
            if response.status != http.client.OK:
                _done(response.read())
            for line in response:
                if line.startswith(b'{"answer":'):
                    _done(line)
                if not line.isspace():
                    yield line.rstrip(b"\n")

    def peer_pid(self) -> int:
        """The daemon's process ID as seen from here, 0 when it cannot be seen."""
        with self._explained(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_SECONDS)
            sock.connect(os.fspath(self.path))
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int(struct.unpack("=iII", raw)[0])

    @contextmanager
    def _response(
        self, method: str, target: str, body: bytes | None, timeout_seconds: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self.path, timeout_seconds)
        try:
            headers = {_PROTOCOL_HEADER: str(PROTOCOL_VERSION), "Content-Type": "application/json"}
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            self._check_protocol(response)
            yield response
        finally:
            connection.close()

    def _check_protocol(self, response: http.client.HTTPResponse) -> None:
        theirs = response.getheader(_PROTOCOL_HEADER)
        if theirs is None:
            raise ControlError(
                f"what listens at {self.path} is not coordinatord; check --socket", ExitCode.FAILED
            )
        if theirs != str(PROTOCOL_VERSION):
            version = response.getheader(_VERSION_HEADER, "unknown")
            raise ControlError(
                f"the daemon (version {version}) speaks control protocol {theirs}, this "
                f"coordinatorctl (version {__version__}) speaks {PROTOCOL_VERSION}; use the "
                "coordinatorctl that was installed with the daemon",
                ExitCode.FAILED,
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the connection into ControlError."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
            raise ControlError(
                f"no daemon is running at {self.path}; start coordinatord, or name its socket "
                "with --socket",
                ExitCode.NOT_RUNNING,
            ) from error
        except PermissionError as error:
            raise ControlError(
                f"no permission to use {self.path}; run as the daemon's user or root, or join the "
                "group that [control] group names",
                ExitCode.REFUSED,
            ) from error
        except (TimeoutError, BlockingIOError) as error:
            raise ConnectionLostError(
                f"the daemon at {self.path} does not answer; a command that was sent may still "
                "take effect: look at coordinatorctl status and at the daemon's log",
                ExitCode.TIMED_OUT,
            ) from error
        except (ConnectionError, http.client.IncompleteRead) as error:
            raise ConnectionLostError(
                f"the daemon at {self.path} closed the connection before it had answered; it may "
                "have ended: look at coordinatorctl status and at the daemon's log",
                ExitCode.FAILED,
            ) from error
        except (http.client.HTTPException, OSError) as error:
            raise ControlError(
                f"{self.path} cannot be used as a control socket "
                f"({type(error).__name__}: {error}); check --socket",
                ExitCode.FAILED,
            ) from error


def _done(body: bytes) -> Done:
    """The answer in `body` if it is a good one. Raises ControlError for every other."""
    try:
        answer: Answer = msgspec.json.decode(body, type=Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ControlError(
            f"the daemon's answer is not understood ({error}); use the coordinatorctl that was "
            "installed with the daemon",
            ExitCode.FAILED,
        ) from error
    match answer:
        case Done():
            return answer
        case Refused(message):
            raise ControlError(message, ExitCode.REFUSED)
        case Invalid(message):
            raise ControlError(message, ExitCode.USAGE)
        case Failed(message):
            raise ControlError(message, ExitCode.FAILED)
