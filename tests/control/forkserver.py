"""Runs coordinatorctl in processes that are forked from one that has loaded it already.

A test session runs it about a hundred times; loading Python and click each time is most of what
that costs. The rest is as in a process of its own: arguments, environment, output, exit code. Run
it as `python -m tests.control.forkserver SOCKET`; it ends with its standard input.
"""

import json
import os
import select
import socket
import sys
import tempfile
from typing import Any, NoReturn

from coordinator.cli import main


def _run(arguments: list[str], environ: dict[str, str], out: int, err: int) -> NoReturn:
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(environ)
    main(arguments)


def _answer(connection: socket.socket) -> None:
    """Read one request, run it in a child, send what came of it."""
    with connection, connection.makefile("rb") as lines:
        request: dict[str, Any] = json.loads(lines.readline())
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                _run(request["arguments"], request["environ"], out.fileno(), err.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            for file in (out, err):
                file.seek(0)
            shown = {"code": code, "out": out.read().decode(), "err": err.read().decode()}
        connection.sendall(json.dumps(shown).encode())


def _serve(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listener.fileno(), 0], [], [])
            if 0 in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                _answer(connection)
                os._exit(0)
            connection.close()
            while _reap():
                pass


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    _serve(sys.argv[1])
