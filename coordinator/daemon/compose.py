"""The life of one daemon: starts its parts in order and stops them in reverse order.

Owns the order. `parts` wires the parts together, `settings` has the settings of each.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup

from coordinator import __version__, control
from coordinator.config import Config
from coordinator.core.model import SweepPath
from coordinator.daemon.notify import STARTED, feed_watchdog, notify
from coordinator.daemon.parts import Parts, build
from coordinator.daemon.preflight import Findings, preflight
from coordinator.daemon.settings import Setup, asking_of
from coordinator.daemon.state import StateDir, claim_state_dir
from coordinator.errors import CoordinatorError, UserError
from coordinator.notices import watch_clouds, watch_signals
from coordinator.process.tree import become_subreaper
from coordinator.redis_server import embedded_redis
from coordinator.state_dir import CONTROL_SOCKET, default_state_dir
from coordinator.supervisor.cloud import CloudNotices
from coordinator.supervisor.commands import Commands
from coordinator.supervisor.outputs import Outputs
from coordinator.supervisor.pool import PREEMPTED_EXIT_CODE, Pool
from coordinator.supervisor.sweep_commands import SweepCommands
from coordinator.telemetry import Telemetry, configure

log = structlog.get_logger()

CLOSE_SECONDS = 5.0
"""Time for the last releases to Redis; the journal keeps what is not answered."""
CLOSE_BLIND_SECONDS = 0.5
"""The same while Redis does not answer: SIGTERM must still end the daemon in time."""


async def run_daemon(config: Config, environ: Mapping[str, str]) -> int:
    """Run one daemon to its end; returns its exit code.

    Raises CoordinatorError with one line for the user.
    """
    state, _lock = claim_state_dir(_root(config, environ))
    node = config.node or socket.gethostname()
    telemetry = _telemetry(config, state, node)
    try:
        return await _Daemon(config, environ, state, node, telemetry).run()
    except* CoordinatorError as group:
        error = _first(group)
        log.error("daemon_failed", reason=str(error), exit_code=error.exit_code)
        raise error from None
    except* Exception as group:
        log.exception("daemon_crashed")
        raise InternalError(group.exceptions[0], state.root) from group
    finally:
        telemetry.close()
    raise AssertionError("an exception group is never empty")


def _root(config: Config, environ: Mapping[str, str]) -> Path:
    return Path(config.state_dir or default_state_dir(environ)).expanduser().absolute()


def _first(group: BaseExceptionGroup[CoordinatorError]) -> CoordinatorError:
    leaf = group.exceptions[0]
    return _first(leaf) if isinstance(leaf, BaseExceptionGroup) else leaf


def _telemetry(config: Config, state: StateDir, node: str) -> Telemetry:
    settings = config.events
    file = None if settings.file == "off" else Path(settings.file or state.root / "events.jsonl")
    return configure(settings.format, file, settings.max_bytes, settings.keep, node)


class _Daemon:
    """The parts of one daemon and their life."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        state: StateDir,
        node: str,
        telemetry: Telemetry,
    ) -> None:
        self.config = config
        self.environ = {**environ, **config.sweep.env}
        self.state = state
        self.node = node
        self.telemetry = telemetry
        self.pool: Pool | None = None
        self._preparing = anyio.CancelScope()
        self._asking = asking_of(config)

    async def run(self) -> int:
        """From the first request to the last release."""
        become_subreaper()
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(anyio.create_task_group())
            await group.start(watch_signals, self._asking.signals, self._notice)
            findings: Findings | None = None
            with self._preparing:
                log.info("daemon_started", version=__version__, pid=os.getpid(),
                         state_dir=str(self.state.root))  # fmt: skip
                self._warn_of_the_launchers_limit()
                findings = await preflight(self.config, self.environ, self.state.outputs, stack,
                                           self.telemetry)  # fmt: skip
            code = PREEMPTED_EXIT_CODE
            if findings is not None and not self._preparing.cancel_called:
                code = await self._work(findings, await self._redis_url(stack))
            log.info("daemon_stopped", exit_code=code)
            group.cancel_scope.cancel()
        return code

    def _warn_of_the_launchers_limit(self) -> None:
        limit, grace = self._asking.save_seconds, self.config.preemption.grace_seconds
        if limit is not None and grace > limit:
            log.warning("grace_beyond_launcher", preset=str(self.config.preemption.preset),
                        grace_seconds=grace, save_seconds=limit)  # fmt: skip

    def _notice(self, signum: int, source: str) -> None:
        if self.pool is not None:
            self.pool.notice(signum, source)
        else:
            self._preparing.cancel()

    async def _redis_url(self, stack: AsyncExitStack) -> str:
        if self.config.redis.url != "embedded":
            return self.config.redis.url
        return await stack.enter_async_context(embedded_redis(self.state.root))

    async def _work(self, findings: Findings, url: str) -> int:
        """Build the parts, run them, and end them in order."""
        setup = Setup(self.config, self.environ, self.state, self.node, findings, url)
        async with anyio.create_task_group() as group:
            parts = await build(setup, group)
            self.pool = parts.pool
            await self._start(setup, parts, group)
            notify(STARTED)
            code = await parts.pool.run()
            notify("STOPPING=1")
            await self._hand_on(parts)
            await parts.wanted.remove()
            redis_answers = parts.leases.admits(None)
            await parts.leases.close(CLOSE_SECONDS if redis_answers else CLOSE_BLIND_SECONDS)
            group.cancel_scope.cancel()
        if parts.agents.fatal is not None:
            raise AgentsFailError(parts.agents.fatal)
        if parts.sweep.deleted:
            raise SweepDeletedError(findings.sweep)
        return code

    async def _start(self, setup: Setup, parts: Parts, group: TaskGroup) -> None:
        """Start what the pool needs; each part is ready before the next one starts."""
        socket_path = Path(self.config.control.socket or self.state.root / CONTROL_SOCKET)
        sweep = SweepCommands(parts.pool, setup.sweep_command(),
                              graceful=self.config.preemption.graceful_cancel)  # fmt: skip
        commands = Commands(parts.pool, parts.views, sweep, parts.wanted)
        await group.start(
            control.serve, socket_path, commands.handle, self.telemetry,
            Outputs(parts.pool).read, self.config.control.group or None,
        )  # fmt: skip
        await group.start(parts.gateway.run)
        await group.start(parts.shims.run)
        group.start_soon(parts.leases.run)
        group.start_soon(parts.sweep.run)
        group.start_soon(feed_watchdog)
        heed = CloudNotices(parts.pool, self.config.preemption.on_risk).heed
        group.start_soon(watch_clouds, self.config.preemption, self.environ, heed)

    async def _hand_on(self, parts: Parts) -> None:
        """Give fetched commands that were not started to other nodes; the rest stays on disk."""
        for command in parts.claims.take_undelivered():
            await parts.rescues.hand_over(command)
        parts.undelivered.leave()


class InternalError(CoordinatorError):
    """a bug in coordinatord"""

    def __init__(self, error: BaseException, state_dir: Path) -> None:
        super().__init__(
            f"internal error: {type(error).__name__}: {error}; "
            f"please report it with {state_dir}/events.jsonl, which has the traceback"
        )


class SweepDeletedError(UserError):
    """the sweep was deleted while the daemon worked on it"""

    def __init__(self, sweep: SweepPath) -> None:
        super().__init__(
            f"--sweep {sweep}: the server no longer has this sweep; it was deleted, or the API key "
            "lost access to it; use another sweep"
        )


class AgentsFailError(CoordinatorError):
    """`wandb agent` does not start, for the reason it gives"""

    def __init__(self, words: str) -> None:
        super().__init__(f"`wandb agent` does not start: {words}")
