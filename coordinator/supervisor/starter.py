"""How agents come into being: forked by the agent server, or started anew where that cannot be.

Owns the agent server and the choice between the two ways. It must never let an agent fail because
the quick way does, unless `[pool] agent_start` says "fork".
"""

import errno
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import anyio
import structlog

from coordinator.core.model import AgentStart
from coordinator.process.forkserver import AgentServer, ServerGoneError, StaleError
from coordinator.process.spawn import Child, spawn
from coordinator.wandb_account.executable import AgentCommand, NotForkableError, probe, python_of

log = structlog.get_logger()

HELP = ("agent", "--help")
TRIAL_SECONDS = 30.0
RETRY_SECONDS = 300.0
"""How long agents are started anew before a server is tried again."""
SERVERS_TRIED = 2
"""For one agent: a server that was killed, or whose wandb has changed, is replaced once."""


@dataclass(frozen=True, slots=True)
class StarterSettings:
    """What starting an agent takes, whichever way."""

    mode: AgentStart
    executable: str
    env: Mapping[str, str]
    """For the server; each agent has its own."""
    workdir: Path
    log_dir: Path


class AgentStarter:
    """See the module. Call `prepare` first."""

    def __init__(self, settings: StarterSettings) -> None:
        self._settings = settings
        self._command = AgentCommand(settings.executable, forward_signals=False)
        self._server: AgentServer | None = None
        self._trial: Child | None = None
        self._try_again_at = 0.0
        self._serving = anyio.Lock()
        self.reason = '[pool] agent_start is "exec"' if settings.mode is AgentStart.EXEC else ""
        """Why agents are not forked; "" when they are."""

    @property
    def forks(self) -> bool:
        """The next agent costs next to nothing."""
        return self._server is not None

    @property
    def pids(self) -> list[int]:
        """Processes whose end somebody waits for here."""
        return [one.pid for one in (self._server, self._trial) if one is not None]

    async def prepare(self) -> None:
        """Find out how agents can be started and which options they take.

        Raises NoWandbError, or NotForkableError where they have to be forked and cannot be.
        """
        settings = self._settings
        if await self._current() is not None:
            return
        if settings.mode is AgentStart.FORK:
            raise NotForkableError(self.reason)
        self._command = await probe(settings.executable, settings.env, settings.workdir)

    async def start(self, sweep: str, *, env: Mapping[str, str], output: Path) -> Child:
        """Start one agent for one run of `sweep`, which appends what it prints to `output`.

        Raises OSError when it cannot be started.
        """
        cwd = self._settings.workdir
        for _ in range(SERVERS_TRIED):
            if (server := await self._current()) is None:
                break
            argv = self._command.argv(sweep)[1:]
            try:
                return await server.fork(argv, env=env, cwd=cwd, output=output)
            except StaleError:
                log.info("agent_server_outdated", pid=server.pid, wandb=server.version)
            except ServerGoneError as error:
                log.warning("agent_server_lost", pid=server.pid, reason=str(error))
                self.reason = str(error)
            await self._drop(server)
        if self._settings.mode is AgentStart.FORK:
            raise OSError(errno.EAGAIN, self.reason)
        return await spawn(self._command.argv(sweep), env=env, cwd=cwd, output=output)

    async def close(self) -> None:
        """End the server; agents that live go on."""
        if self._server is not None:
            await self._drop(self._server)

    async def _drop(self, server: AgentServer) -> None:
        if self._server is server:
            self._server = None
        await server.close()

    async def _current(self) -> AgentServer | None:
        """The server, started if need be; None while there can be none."""
        async with self._serving:
            exec_only = self._settings.mode is AgentStart.EXEC
            if self._server is None and not exec_only and monotonic() >= self._try_again_at:
                await self._serve()
            return self._server

    async def _serve(self) -> None:
        settings = self._settings
        try:
            python = await anyio.to_thread.run_sync(python_of, settings.executable, settings.env)
            server = await AgentServer.start(
                python, settings.executable, env=settings.env, cwd=settings.workdir,
                log=settings.log_dir / "agent_server.log",
            )  # fmt: skip
            try:
                text = await self._try_out(server)
            except BaseException:
                await server.close()
                raise
        except (NotForkableError, ServerGoneError, StaleError, OSError) as error:
            self.reason = error.reason if isinstance(error, NotForkableError) else str(error)
            self._try_again_at = monotonic() + RETRY_SECONDS
            log.warning("agent_server_unavailable", reason=self.reason)
            return
        self._server, self.reason = server, ""
        self._command = AgentCommand.from_help(settings.executable, text)
        log.info("agent_server_started", pid=server.pid, wandb=server.version)

    async def _try_out(self, server: AgentServer) -> str:
        """What a forked `wandb agent --help` prints. Raises as `AgentServer.fork` does."""
        settings = self._settings
        output = settings.log_dir / "agent_trial.log"
        with suppress(FileNotFoundError):
            await anyio.Path(output).unlink()
        self._trial = await server.fork(HELP, env=settings.env, cwd=settings.workdir, output=output)
        try:
            with anyio.fail_after(TRIAL_SECONDS):
                code = await self._trial.wait()
        except TimeoutError as error:
            raise ServerGoneError("a forked `wandb agent --help` does not end") from error
        finally:
            with anyio.CancelScope(shield=True):
                await self._trial.kill_session()
            self._trial = None
        text = await anyio.Path(output).read_text(encoding="utf-8", errors="replace")
        if code != 0:
            last = text.strip().splitlines()[-1:] or ["no output"]
            raise ServerGoneError(f"a forked `wandb agent --help` failed: {last[0]}")
        return text
