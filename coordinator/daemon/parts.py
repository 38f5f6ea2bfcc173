"""Builds the parts of one daemon and wires them together.

Owns the wiring: services get each other as callables here and nowhere else. Starts nothing.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from coordinator.core.lease import HolderState
from coordinator.core.model import Outcome
from coordinator.core.wire import TrainCommand
from coordinator.daemon.guards import build_guards
from coordinator.daemon.settings import Setup
from coordinator.daemon.state import StateDir
from coordinator.gateway import Endpoint, Gateway
from coordinator.leases import Journal, JournalEntry, Lease, LeaseKeeper, Leases, NoLeases
from coordinator.process.kernel import Kernel, delegated_group
from coordinator.supervisor.agents import Agents, prune_outputs
from coordinator.supervisor.claims import Claims
from coordinator.supervisor.endings import Endings
from coordinator.supervisor.history import History
from coordinator.supervisor.level import Level
from coordinator.supervisor.pool import Pool
from coordinator.supervisor.prospects import Prospects
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.revival import Revival
from coordinator.supervisor.shims import Shims
from coordinator.supervisor.slot import Services
from coordinator.supervisor.stays import Stay, StayFiles
from coordinator.supervisor.sweep import SweepWatch
from coordinator.supervisor.trainings import Trainings
from coordinator.supervisor.undelivered import Undelivered, train_command
from coordinator.supervisor.views import Views
from coordinator.supervisor.wanted import Wanted, WantedFile

log = structlog.get_logger()

SHIM = Path(__file__).parent.parent / "shim.py"


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What earlier daemons of this node left in the state directory."""

    history: History
    files: StayFiles
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


async def read_left_behind(state: StateDir, slots: int) -> LeftBehind:
    """Read everything; also deletes old output files."""
    files = StayFiles(state.stays, state.exits)
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
    return LeftBehind(
        history, files, stays, claimed, undelivered, commands, cgroup, wanted, wanted_file
    )


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


async def build(setup: Setup, group: TaskGroup) -> Parts:
    """Read what is on disk and build everything; raises CoordinatorError for a bad Redis URL.

    What the parts start runs in `group`.
    """
    left = await read_left_behind(setup.state, setup.findings.slots)
    trainings = Trainings()
    leases = _leases(setup, trainings)
    leases.adopt([stay.token for stay in left.stays],
                 {entry.token: Outcome.LOST_CLAIM for entry in left.claimed})  # fmt: skip
    parts = _connect(setup, left, leases, trainings, group)
    parts.pool.adopt(left.stays)
    for command in [*(train_command(entry.claim) for entry in left.claimed), *left.commands]:
        await parts.claims.put_back(command)
    leases.describe(parts.views.facts)
    return parts


def _connect(
    setup: Setup, left: LeftBehind, leases: Leases, trainings: Trainings, group: TaskGroup
) -> Parts:
    findings = setup.findings
    changed = Level()
    guards = build_guards(setup, leases, changed)
    revival = Revival(findings.account, findings.sweep, leases, setup.sweep_command(),
                      enabled=setup.config.sweep.resume_sweep)  # fmt: skip
    sweep = SweepWatch(findings.account, findings.sweep, findings.sweep_state, changed, revival)
    rescues = Rescues(setup.rescue_policy(), leases, findings.account, findings.sweep,
                      left.undelivered,
                      patience_seconds=setup.rescue_patience_seconds())  # fmt: skip
    claims = Claims(setup.config.sweep.poll_seconds, rescues.next, sweep.ended, guards,
                    rest=leases.rest, kept=left.undelivered)  # fmt: skip
    prospects = Prospects(sweep, rescues, lambda: bool(claims.undelivered))
    endpoint = Endpoint()
    agents = Agents(setup.agent_settings(endpoint.address), findings.starter, changed=changed,
                    refused=sweep.ended, guards=guards,
                    welcome=lambda: prospects.guests_welcome, group=group)  # fmt: skip
    endings = Endings(
        node=setup.node,
        sweep=findings.sweep,
        account=findings.account,
        leases=leases,
        history=left.history,
        stays=left.files,
        rescues=rescues,
        changed=changed,
        guards=guards,
        requeued=sweep.ended,
        linger=agents.end_lingering,
        group=group,
    )
    shims = Shims(setup.state.shim_socket)
    services = Services(agents, claims, shims, leases, trainings, changed, guards, endings.begin,
                        Kernel(left.cgroup))  # fmt: skip
    pool = Pool(
        settings=setup.pool_settings(),
        slot_settings=setup.slot_settings(left.files),
        services=services,
        sweep=sweep,
        endings=endings,
        rescues=rescues,
        prospects=prospects,
        wanted=left.wanted,
    )
    gateway = Gateway(endpoint, findings.login.base_url, findings.session, agents,
                      [sys.executable, "-I", "-S", str(SHIM)])  # fmt: skip
    views = Views(setup.names(), pool, left.history)
    return Parts(pool, leases, sweep, agents, claims, rescues, endings, left.undelivered, shims,
                 gateway, views, left.wanted_file)  # fmt: skip


def _leases(setup: Setup, trainings: Trainings) -> Leases:
    if setup.redis_url == "off":
        return NoLeases(setup.node)
    budget_seconds = setup.config.redis.stop_budget_seconds

    async def fence(lease: Lease) -> None:
        if (training := trainings.of_lease(lease.token)) is not None:
            log.error("run_fenced", slot=training.slot, run_id=lease.run_id)
            training.fence()

    async def give_up(lease: Lease, state: HolderState) -> None:
        if (training := trainings.of_lease(lease.token)) is not None:
            log.warning("lease_given_up", slot=training.slot, run_id=lease.run_id, state=state)
            training.preempt(setup.preempt_signal(), budget_seconds)

    return LeaseKeeper(setup.redis_url, setup.findings.sweep, setup.node, setup.lease_settings(),
                       setup.state.journal, fence, give_up,
                       shared=setup.config.redis.url != "embedded")  # fmt: skip
