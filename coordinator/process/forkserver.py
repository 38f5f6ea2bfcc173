"""Talks to the agent server, which forks agents so that they need not be executed.

Owns that process and its pipes. Forked agents are children of this process, like executed ones, and
outlive their server. It must never return an agent whose end cannot be waited for.
"""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.process.spawn import Child, launch, open_log

SERVER = Path(__file__).parent.parent / "agent_server.py"
IMPORT_SECONDS = 60.0
"""Limit for the import of wandb, which can take this long on a slow network file system."""
FORK_SECONDS = 15.0
LONGEST_ANSWER = 65536
TITLE_BYTES = 512
"""Room for a forked agent to show its own command line."""
LOOK_SECONDS = 0.2
UNKNOWN_EXIT_CODE = 255
"""Its status was collected elsewhere; the value that asyncio uses."""


class ServerGoneError(Exception):
    """The agent server cannot be used, or no longer; the reason is for users."""


class StaleError(Exception):
    """wandb has changed on disk since the server imported it."""


class Forked(Child):
    """A process that the agent server has forked for us."""

    def __init__(self, pid: int, *, eager: bool) -> None:
        super().__init__(pid)
        self.eager = eager
        self._exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """See `Child`."""
        return self._exit_code

    async def wait(self) -> int:
        """See `Child`; only one task at a time."""
        pidfd = _pidfd(self.pid)
        try:
            while (code := self._take_status()) is None:
                if pidfd is None:
                    await anyio.sleep(LOOK_SECONDS)
                else:
                    await anyio.wait_readable(pidfd)
        finally:
            if pidfd is not None:
                os.close(pidfd)
        return code

    def _take_status(self) -> int | None:
        if self._exit_code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._exit_code = UNKNOWN_EXIT_CODE
            else:
                self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit_code


def _pidfd(pid: int) -> int | None:
    """None if the kernel has no pidfd_open(2): before Linux 5.3, and in some sandboxes."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM, errno.ESRCH}:
            return None
        raise


class AgentServer:
    """One running server. Create it with `start`."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None, "started with pipes"
        self._process = process
        self._answers = BufferedByteReceiveStream(process.stdout)
        self._turn = anyio.Lock()
        self.version = ""
        """Of wandb."""
        self.eager = False
        """Its agents ask for work at once, and again at once after an empty answer."""

    @classmethod
    async def start(
        cls, python: Sequence[str], script: str, *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> "AgentServer":
        """Start a server in the interpreter of the wandb command `script`.

        Raises ServerGoneError if it does not work, OSError if it cannot be started.
        """
        command = [*python, str(SERVER), script, str(os.getpid()), "-" * TITLE_BYTES]
        errors = await anyio.to_thread.run_sync(open_log, log)
        try:
            process = await launch(
                command, env=env, cwd=cwd, stdin=PIPE, stdout=PIPE, stderr=errors
            )
        finally:
            os.close(errors)
        server = cls(process)
        try:
            hello = await server._answer(IMPORT_SECONDS)
        except BaseException:
            await server.close()
            raise
        server.version, server.eager = hello["wandb"], hello["eager"]
        return server

    @property
    def pid(self) -> int:
        """Process ID of the server."""
        return self._process.pid

    async def fork(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path
    ) -> Child:
        """Fork a process that runs `wandb ARGV…` with its output appended to `output`.

        Raises OSError if this fork failed, StaleError, and ServerGoneError.
        """
        os.close(await anyio.to_thread.run_sync(open_log, output))  # what is wrong is said here
        request = {"argv": list(argv), "env": dict(env), "cwd": str(cwd), "output": str(output)}
        with anyio.CancelScope(shield=True):  # an unread answer would be taken for the next one
            async with self._turn:
                answer = await self._exchange(json.dumps(request).encode() + b"\n")
        if "failed" in answer:
            raise OSError(errno.EAGAIN, answer["failed"])
        if "stale" in answer:
            raise StaleError
        return Forked(answer["pid"], eager=self.eager)

    async def close(self) -> None:
        """Stop the server; its agents continue."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()

    async def _exchange(self, request: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None, "started with pipes"
        try:
            with anyio.fail_after(FORK_SECONDS):
                await self._process.stdin.send(request)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ServerGoneError("the agent server has ended") from error
        except TimeoutError as error:
            raise ServerGoneError("the agent server does not read") from error
        return await self._answer(FORK_SECONDS)

    async def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            with anyio.fail_after(seconds):
                line = await self._answers.receive_until(b"\n", LONGEST_ANSWER)
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
            raise ServerGoneError("the agent server has ended") from error
        except (TimeoutError, anyio.DelimiterNotFound) as error:
            raise ServerGoneError(f"the agent server did not answer in {seconds:.0f} s") from error
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:  # something in that environment writes to stdout at its start
            raise ServerGoneError(f"the agent server said {line[:80]!r}") from error
        if "refused" in answer:
            raise ServerGoneError(answer["refused"])
        return answer
