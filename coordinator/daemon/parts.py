"""Builds the parts of one daemon and wires them together.

Owns the wiring: services get each other as callables here and nowhere else. Starts nothing.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import structlog

from coordinator.core.lease import HolderState
from coordinator.core.model import Outcome
from coordinator.core.wire import TrainCommand
from coordinator.daemon.guards import build_guards
from coordinator.daemon.settings import Setup
from coordinator.daemon.state import StateDir
from coordinator.gateway import Gateway
from coordinator.leases import Journal, JournalEntry, Lease, LeaseKeeper, Leases, NoLeases
from coordinator.process.kernel import Kernel, delegated_group
from coordinator.supervisor.agent import Agent
from coordinator.supervisor.agents import Agents, prune_outputs
from coordinator.supervisor.claims import Claims
from coordinator.supervisor.endings import Endings
from coordinator.supervisor.history import History
from coordinator.supervisor.level import Level
from coordinator.supervisor.pool import Pool
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.revival import Revival
from coordinator.supervisor.shims import Shims
from coordinator.supervisor.slot import Services
from coordinator.supervisor.stays import Stay, StayFiles
from coordinator.supervisor.sweep import SweepWatch
from coordinator.supervisor.training import Training
from coordinator.supervisor.undelivered import Undelivered, train_command
from coordinator.supervisor.views import Views
from coordinator.supervisor.wanted import Wanted, WantedFile

log = structlog.get_logger()

SHIM = Path(__file__).parent.parent / "shim.py"


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What earlier daemons of this node left in the state directory."""

    history: History
    stays: list[Stay]
    claimed: list[JournalEntry]
    """Runs that were claimed but never started; the server waits for them."""
    undelivered: Undelivered
    commands: list[TrainCommand]
    """Those in `undelivered` that are recorded nowhere else."""
    cgroup: Path | None
    """Delegated to us; earlier daemons may have created groups in it."""
    wanted: Wanted
    wanted_file: WantedFile


async def read_left_behind(state: StateDir, files: StayFiles, slots: int) -> LeftBehind:
    """Read everything; also deletes old output files."""
    history = History(state.history)
    await anyio.to_thread.run_sync(history.load)
    await anyio.to_thread.run_sync(prune_outputs, state.outputs)
    stays = await anyio.to_thread.run_sync(files.load)
    entries, _ = await anyio.to_thread.run_sync(Journal(state.journal).load)
    started = {stay.token for stay in stays}
    claimed = [e for e in entries if e.token not in started and e.state != "releasing"]
    undelivered = Undelivered(state.undelivered)
    known = {stay.run_id for stay in stays} | {entry.run_id for entry in claimed}
    commands = [c for c in await undelivered.load() if c.run_id not in known]
    await undelivered.settle(*known)
    cgroup = await anyio.to_thread.run_sync(delegated_group)
    wanted_file = WantedFile(state.wanted)
    wanted = await wanted_file.load(slots)
    return LeftBehind(history, stays, claimed, undelivered, commands, cgroup, wanted, wanted_file)


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that runs or answers requests while the daemon runs."""

    pool: Pool
    leases: Leases
    sweep: SweepWatch
    agents: Agents
    claims: Claims
    rescues: Rescues
    endings: Endings
    undelivered: Undelivered
    shims: Shims
    gateway: Gateway
    views: Views
    wanted: WantedFile


async def build(setup: Setup) -> Parts:
    """Read what is on disk and build everything; raises CoordinatorError for a bad Redis URL."""
    files = StayFiles(setup.state.stays, setup.state.exits)
    left = await read_left_behind(setup.state, files, setup.findings.slots)
    pools: list[Pool] = []
    leases = _leases(setup, lambda: [training for pool in pools for training in pool.trainings])
    leases.adopt([stay.token for stay in left.stays],
                 {entry.token: Outcome.LOST_CLAIM for entry in left.claimed})  # fmt: skip
    parts = _connect(setup, files, left, leases)
    pools.append(parts.pool)
    parts.pool.adopt(left.stays)
    for command in [*(train_command(entry.claim) for entry in left.claimed), *left.commands]:
        await parts.claims.put_back(command)
    leases.describe(parts.views.facts)
    return parts


def _connect(setup: Setup, files: StayFiles, left: LeftBehind, leases: Leases) -> Parts:
    findings = setup.findings
    changed = Level()
    guards = build_guards(setup, leases, changed)
    revival = Revival(findings.account, findings.sweep, leases, setup.sweep_command(),
                      enabled=setup.config.sweep.resume_sweep)  # fmt: skip
    sweep = SweepWatch(findings.account, findings.sweep, findings.sweep_state, changed, revival)
    rescues = Rescues(setup.rescue_policy(), leases, findings.account, findings.sweep,
                      left.undelivered,
                      patience_seconds=setup.rescue_patience_seconds())  # fmt: skip
    endings = Endings(
        node=setup.node,
        sweep=findings.sweep,
        account=findings.account,
        leases=leases,
        history=left.history,
        stays=files,
        rescues=rescues,
        changed=changed,
        guards=guards,
    )
    endings.requeued = sweep.ended
    agents = Agents(setup.agent_settings(), findings.starter, changed, sweep.ended, guards)
    claims = Claims(setup.config.sweep.poll_seconds, rescues.next, sweep.ended,
                    lambda agent: _unknown(agents, sweep, agent), guards,
                    kept=left.undelivered)  # fmt: skip
    shims = Shims(setup.state.shim_socket)
    kernel = Kernel(left.cgroup)
    gateway = Gateway(findings.login.base_url, findings.session, agents,
                      [sys.executable, "-I", "-S", str(SHIM)])  # fmt: skip
    agents.address = gateway.address
    pool = Pool(
        settings=setup.pool_settings(),
        slot_settings=setup.slot_settings(files),
        services=Services(agents, claims, shims, leases, changed, guards, endings.begin, kernel),
        sweep=sweep,
        endings=endings,
        rescues=rescues,
        wanted=left.wanted,
    )
    if setup.config.preemption.graceful_cancel:
        agents.withhold = lambda run_id: _end_gracefully(pool, run_id)
    views = Views(setup.names(), pool, left.history)
    return Parts(pool, leases, sweep, agents, claims, rescues, endings, left.undelivered, shims,
                 gateway, views, left.wanted_file)  # fmt: skip


def _unknown(agents: Agents, sweep: SweepWatch, agent: Agent) -> None:
    """The server answered 404: it no longer has this agent, or the whole sweep."""
    agents.discard(agent)
    sweep.ended()


def _end_gracefully(pool: Pool, run_id: str) -> bool:
    """The sweep was cancelled: signal and grace for the run; False if the run is gone."""
    found = [training for training in pool.trainings if training.run_id == run_id]
    for training in found:
        training.preempt(pool.settings.preempt_signal, pool.settings.grace_seconds)
    return bool(found)


def _leases(setup: Setup, trainings: Callable[[], list[Training]]) -> Leases:
    if setup.redis_url == "off":
        return NoLeases(setup.node)
    budget_seconds = setup.config.redis.stop_budget_seconds

    async def fence(lease: Lease) -> None:
        for training in trainings():
            if training.lease.token == lease.token:
                log.error("run_fenced", slot=training.slot, run_id=lease.run_id)
                training.fence()

    async def give_up(lease: Lease, state: HolderState) -> None:
        for training in trainings():
            if training.lease.token == lease.token:
                log.warning("lease_given_up", slot=training.slot, run_id=lease.run_id, state=state)
                training.preempt(setup.preempt_signal(), budget_seconds)

    return LeaseKeeper(setup.redis_url, setup.findings.sweep, setup.node, setup.lease_settings(),
                       setup.state.journal, fence, give_up,
                       shared=setup.config.redis.url != "embedded")  # fmt: skip
