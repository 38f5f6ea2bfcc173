"""The composition root: builds the parts, starts them in order, ends them in the opposite order.

Owns who knows whom. Services get each other as callables here and nowhere else.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from coordinator import __version__, control
from coordinator.config import Config
from coordinator.config.model import GRACEFUL_SIGNALS
from coordinator.config.state_dir import CONTROL_SOCKET, default_state_dir
from coordinator.core.lease import HolderState
from coordinator.core.model import Outcome
from coordinator.core.rescue import Policy
from coordinator.core.signals import signal_number
from coordinator.daemon.notify import STARTED, feed_watchdog, notify
from coordinator.daemon.preflight import Findings, preflight
from coordinator.daemon.state import StateDir, claim_state_dir
from coordinator.errors import CoordinatorError
from coordinator.gateway import Gateway
from coordinator.gpu import assign
from coordinator.leases import (
    Journal,
    JournalEntry,
    Lease,
    LeaseKeeper,
    Leases,
    LeaseSettings,
    NoLeases,
    redacted_url,
)
from coordinator.notices import watch_signals
from coordinator.process.kernel import Kernel, delegated_group
from coordinator.process.tree import become_subreaper
from coordinator.redis_server import embedded_redis
from coordinator.supervisor.agents import Agents, AgentSettings, prune_outputs
from coordinator.supervisor.claims import Claims
from coordinator.supervisor.commands import Commands
from coordinator.supervisor.endings import Endings
from coordinator.supervisor.history import History
from coordinator.supervisor.level import Level
from coordinator.supervisor.outputs import Outputs
from coordinator.supervisor.pool import PREEMPTED_EXIT_CODE, Pool, PoolSettings
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.shims import Shims
from coordinator.supervisor.slot import Services, SlotSettings, training_environment
from coordinator.supervisor.stays import Stay, StayFiles
from coordinator.supervisor.sweep import SweepWatch
from coordinator.supervisor.undelivered import load_undelivered, save_undelivered, train_command
from coordinator.supervisor.views import Names, Views
from coordinator.telemetry import Telemetry, configure

log = structlog.get_logger()

SHIM = Path(__file__).parent.parent / "shim.py"
CLOSE_SECONDS = 5.0
"""For the last releases to Redis; the journal keeps what is not answered."""
NOT_FOR_AGENTS = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS",
                            "LISTEN_PID", "LISTEN_FDNAMES"})  # fmt: skip
"""systemd's word to us alone; sd_notify(3) and sd_listen_fds(3) say to take them away."""
SHIM_VARIABLE = "COORDINATOR_RUN_SHIM"


async def run_daemon(config: Config, environ: Mapping[str, str]) -> int:
    """Run one daemon to its end; its exit code.

    Raises CoordinatorError with one line for the user.
    """
    root = Path(config.state_dir) if config.state_dir else default_state_dir(environ)
    state, _lock = claim_state_dir(root.expanduser().absolute())
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
        self._signals = {name: name for name in GRACEFUL_SIGNALS} | config.preemption.signals
        """Those that are not named are notices too, and passed on as they are."""

    async def run(self) -> int:
        """From the first question to the last release."""
        become_subreaper()
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(anyio.create_task_group())
            await group.start(watch_signals, self._signals, self._notice)
            findings: Findings | None = None
            with self._preparing:
                log.info("daemon_started", version=__version__, pid=os.getpid(),
                         state_dir=str(self.state.root))  # fmt: skip
                findings = await preflight(self.config, self.environ, stack, self.telemetry)
            code = PREEMPTED_EXIT_CODE
            if findings is not None and not self._preparing.cancel_called:
                code = await self._work(findings, await self._redis_url(stack))
            log.info("daemon_stopped", exit_code=code)
            group.cancel_scope.cancel()
        return code

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
        changed = Level()
        leases = self._leases(findings, url)
        history = History(self.state.history)
        await anyio.to_thread.run_sync(history.load)
        await anyio.to_thread.run_sync(prune_outputs, self.state.outputs)
        files = StayFiles(self.state.stays, self.state.exits)
        stays = await anyio.to_thread.run_sync(files.load)
        claimed = await self._claimed_only(stays)
        leases.adopt([stay.token for stay in stays],
                     {entry.token: Outcome.LOST_CLAIM for entry in claimed})  # fmt: skip
        sweep = SweepWatch(findings.account, findings.sweep, findings.sweep_state, changed)
        rescues = Rescues(
            self._policy(),
            leases,
            findings.account,
            findings.sweep,
            patience_seconds=self.config.redis.ttl_seconds + self.config.redis.grace_seconds + 5,
        )
        endings = Endings(
            node=self.node,
            sweep=findings.sweep,
            account=findings.account,
            leases=leases,
            history=history,
            stays=files,
            rescues=rescues,
            changed=changed,
        )
        agents = Agents(self._agent_settings(findings), changed, sweep.ended)
        claims = Claims(self.config.sweep.poll_seconds, rescues.next, sweep.ended, agents.discard)
        for entry in claimed:
            claims.put_back(train_command(entry.claim))
        for command in await load_undelivered(self.state.undelivered):
            claims.put_back(command)
        shims = Shims(self.state.shim_socket)
        kernel = Kernel(await anyio.to_thread.run_sync(delegated_group))
        services = Services(agents, claims, shims, leases, changed, endings.begin, kernel)
        gateway = Gateway(findings.login.base_url, findings.session, agents,
                          [sys.executable, "-I", "-S", str(SHIM)])  # fmt: skip
        agents.address = gateway.address
        pool = Pool(
            settings=self._pool_settings(findings),
            slot_settings=self._slot_settings(findings, files),
            services=services,
            sweep=sweep,
            endings=endings,
            rescues=rescues,
        )
        pool.adopt(stays)
        self.pool = pool
        views = Views(self._names(findings, url), pool, history)
        leases.describe(views.facts)
        async with anyio.create_task_group() as group:
            endings.group = group
            endings.linger = lambda training: group.start_soon(agents.end_lingering, training.agent)
            socket_path = Path(self.config.control.socket or self.state.root / CONTROL_SOCKET)
            await group.start(
                control.serve, socket_path, Commands(pool, views).handle, self.telemetry,
                Outputs(pool).read, self.config.control.group or None,
            )  # fmt: skip
            await group.start(gateway.run)
            await group.start(shims.run)
            group.start_soon(leases.run)
            group.start_soon(sweep.run)
            group.start_soon(feed_watchdog)
            notify(STARTED)
            code = await pool.run()
            notify("STOPPING=1")
            left = [c for c in claims.take_undelivered() if not await rescues.hand_over(c.run_id)]
            await save_undelivered(self.state.undelivered, left)
            await leases.close(CLOSE_SECONDS)
            group.cancel_scope.cancel()
        if agents.fatal is not None:
            raise AgentsFailError(agents.fatal)
        return code

    async def _claimed_only(self, stays: Sequence[Stay]) -> list[JournalEntry]:
        """Runs that the last daemon claimed and never started: the server waits for them."""
        started = {stay.token for stay in stays}
        entries, _ = await anyio.to_thread.run_sync(Journal(self.state.journal).load)
        return [e for e in entries if e.token not in started and e.state != "releasing"]

    # --- settings -----------------------------------------------------------------------------
    def _leases(self, findings: Findings, url: str) -> Leases:
        if url == "off":
            return NoLeases(self.node)
        redis = self.config.redis
        settings = LeaseSettings(
            ttl_seconds=redis.ttl_seconds,
            renew_seconds=redis.renew_seconds,
            grace_seconds=redis.grace_seconds,
            handoff_seconds=redis.handoff_seconds,
            race_window_seconds=redis.race_window_seconds,
            on_lease_loss=redis.on_lease_loss,
            timeout_seconds=redis.timeout_seconds,
            stop_budget_seconds=redis.stop_budget_seconds,
        )
        return LeaseKeeper(url, findings.sweep, self.node, settings, self.state.journal,
                           self._on_fenced, self._on_stop,
                           shared=self.config.redis.url != "embedded")  # fmt: skip

    async def _on_fenced(self, lease: Lease) -> None:
        for training in self.pool.trainings if self.pool else []:
            if training.lease.token == lease.token:
                log.error("run_fenced", slot=training.slot, run_id=lease.run_id)
                training.fence()

    async def _on_stop(self, lease: Lease, state: HolderState) -> None:
        pool = self.pool
        for training in pool.trainings if pool else []:
            if pool and training.lease.token == lease.token:
                log.warning("lease_given_up", slot=training.slot, run_id=lease.run_id, state=state)
                training.preempt(
                    pool.settings.preempt_signal, self.config.redis.stop_budget_seconds
                )

    def _policy(self) -> Policy:
        rescue = self.config.rescue
        return Policy(rescue.enabled, frozenset(rescue.on), rescue.max_attempts,
                      rescue.backoff_seconds)  # fmt: skip

    def _agent_settings(self, findings: Findings) -> AgentSettings:
        env = {name: value for name, value in self.environ.items() if name not in NOT_FOR_AGENTS}
        env |= {"WANDB_API_KEY": findings.login.api_key,
                SHIM_VARIABLE: str(self.state.shim_socket)}  # fmt: skip
        return AgentSettings(findings.command, findings.sweep, env, findings.workdir,
                             self.state.outputs)  # fmt: skip

    def _pool_settings(self, findings: Findings) -> PoolSettings:
        preemption = self.config.preemption
        return PoolSettings(
            slots=findings.slots,
            warm_agents=self.config.pool.warm_agents,
            until_done=self.config.until_done,
            grace_seconds=preemption.grace_seconds,
            storm_seconds=preemption.storm_seconds,
            preempt_signal=signal_number(self._signals["SIGTERM"]),
        )

    def _slot_settings(self, findings: Findings, files: StayFiles) -> SlotSettings:
        pool = self.config.pool
        # What the agent was given only to reach us is taken back before the training starts.
        back: dict[str, str | None] = {"WANDB_BASE_URL": self.environ.get("WANDB_BASE_URL")}
        if not findings.login.key_from_environment:
            back["WANDB_API_KEY"] = None

        def gpus(slot: int) -> list[str]:
            return assign(findings.gpus, slot, pool.gpus_per_slot)

        return SlotSettings(
            start_seconds=pool.start_seconds,
            linger_seconds=pool.linger_seconds,
            poll_seconds=self.config.sweep.poll_seconds,
            stays=files,
            environment=training_environment(back, self.config.sweep.resume, gpus),
        )

    def _names(self, findings: Findings, url: str) -> Names:
        return Names(
            node=self.node,
            sweep=str(findings.sweep),
            redis_url=redacted_url(url) if url != "off" else url,
            embedded=self.config.redis.url == "embedded",
            upstream=findings.login.base_url,
            gpus=findings.gpus,
            gpus_per_slot=self.config.pool.gpus_per_slot,
        )


class InternalError(CoordinatorError):
    """a fault of ours: please report it"""

    def __init__(self, error: BaseException, state_dir: Path) -> None:
        super().__init__(
            f"internal error: {type(error).__name__}: {error}; "
            f"please report it with {state_dir}/events.jsonl, which has the traceback"
        )


class AgentsFailError(CoordinatorError):
    """`wandb agent` does not start: the words are its own"""

    def __init__(self, words: str) -> None:
        super().__init__(f"`wandb agent` does not start; it said: {words}")
