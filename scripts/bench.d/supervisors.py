"""supervisord and circusd, which keep processes alive, as things to be compared with.

Owns their configuration, with the defaults of each, and their processes, which end with the block.
Both are installed into an environment of their own, never into the project's.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.emulator import wait_until
from tests.support.installations import supervisors_python

SUPERVISORD, CIRCUSD = "supervisord", "circusd"
_SUPERVISORD = """\
[unix_http_server]
file={directory}/s.sock
[supervisord]
logfile={directory}/supervisord.log
pidfile={directory}/supervisord.pid
nodaemon=true
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{directory}/s.sock
[program:training]
command={command}
process_name=%(program_name)s_%(process_num)d
numprocs={count}
autorestart=true
"""
_CIRCUSD = """\
[circus]
endpoint = ipc://{directory}/c.sock
pubsub_endpoint = ipc://{directory}/p.sock
[watcher:training]
cmd = {command}
numprocesses = {count}
copy_env = True
"""
_CONFIGURATIONS = {SUPERVISORD: _SUPERVISORD, CIRCUSD: _CIRCUSD}
_STOP_SECONDS = 30.0


def programs() -> Path:
    """The directory of their commands; an OSError when they cannot be installed."""
    return supervisors_python().parent


@contextmanager
def supervising(
    name: str, directory: Path, command: list[str], count: int, env: Mapping[str, str]
) -> Iterator[Path]:
    """The supervisor `name` keeps `count` processes alive; its configuration file."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name}.ini"
    file.write_text(_CONFIGURATIONS[name].format(
        directory=directory, command=" ".join(command), count=count))  # fmt: skip
    flags = ["-c", str(file)] if name == SUPERVISORD else [str(file)]
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(programs() / name), *flags], env={**os.environ, **env}, cwd=directory,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield file
    finally:
        process.terminate()  # both end their processes first
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def sleeping(seconds: float) -> list[str]:
    """A process that only waits."""
    return [sys.executable, "-c", f'"import time; time.sleep({seconds:g})"']


def wait_listening(file: Path) -> None:
    """Until supervisorctl can be answered."""
    wait_until("supervisord listens", file.with_name("s.sock").exists, _STOP_SECONDS)
