"""What people see of the node: the objects that `coordinatorctl --json` prints.

Owns the translation from the pool to `core.protocol`. Changes nothing.
"""

import os
from dataclasses import dataclass

import msgspec

from coordinator import __version__
from coordinator.core.model import AgentStart
from coordinator.core.protocol import (
    AgentStartView,
    RedisView,
    RunView,
    SlotView,
    StatusView,
    UpstreamView,
)
from coordinator.gpu import assign
from coordinator.leases import NodeFacts
from coordinator.supervisor.endings import view_of
from coordinator.supervisor.history import History
from coordinator.supervisor.pool import Pool
from coordinator.supervisor.slot import Slot
from coordinator.supervisor.stays import utc_now


@dataclass(frozen=True, slots=True)
class Names:
    """What does not change while the daemon lives; addresses without secrets."""

    node: str
    sweep: str
    redis_url: str
    embedded: bool
    upstream: str
    gpus: tuple[str, ...]
    gpus_per_slot: int


class Views:
    """See the module."""

    def __init__(self, names: Names, pool: Pool, history: History) -> None:
        self._names = names
        self._pool = pool
        self._history = history
        self._started = utc_now()

    def status(self) -> StatusView:
        """The node as it is now."""
        pool, names = self._pool, self._names
        return StatusView(
            node=names.node,
            sweep=names.sweep,
            state=pool.state,
            desired_slots=pool.desired_slots,
            slots=[self._slot(pool.slots[number]) for number in sorted(pool.slots)],
            warm_agents=pool.services.agents.warm,
            redis=self._redis(),
            upstream=self._upstream(),
            version=__version__,
            pid=os.getpid(),
            started=self._started,
            degraded=self._degraded(),
            breakers=self._pool.services.guards.breakers.views(),
            agent_start=self._agent_start(),
        )

    def facts(self) -> NodeFacts:
        """What the other nodes are told of this one at each renewal of its leases."""
        pool = self._pool
        return NodeFacts(
            version=__version__,
            state=pool.state,
            slots=pool.desired_slots,
            busy=sum(slot.run_id is not None for slot in pool.slots.values()),
            pid=os.getpid(),
        )

    def runs(self, limit: int) -> list[RunView]:
        """Stays of runs, newest first."""
        living = [view_of(training, self._names.node) for training in self._pool.trainings]
        return self._history.newest(living, limit)

    async def stays(self, run_id: str, limit: int) -> list[RunView]:
        """Stays of one run on all nodes, newest first. Raises PeerError when Redis is silent."""
        shared = self._pool.services.leases.shared
        lines = [] if shared is None else await shared.stays(run_id)
        found = {(view.node, view.started): view for view in map(_stay, lines) if view}
        found |= {(v.node, v.started): v for v in self.runs(0) if v.run_id == run_id}
        views = sorted(found.values(), key=lambda view: view.started, reverse=True)
        return views[:limit] if limit else views

    def _slot(self, slot: Slot) -> SlotView:
        names, training = self._names, slot.training
        return SlotView(
            slot=slot.number,
            state=slot.view_state(),
            run_id=slot.run_id,
            pid=training.attempt.pid if training else None,
            agent_pid=slot.agent.pid if slot.agent else None,
            gpus=assign(names.gpus, slot.number, names.gpus_per_slot),
            since=slot.since,
            draining=slot.retiring is not None,
        )

    def _agent_start(self) -> AgentStartView:
        starter = self._pool.services.agents.starter
        way = AgentStart.FORK if starter.forks else AgentStart.EXEC
        return AgentStartView(way, starter.reason)

    def _redis(self) -> RedisView:
        leases = self._pool.services.leases
        health = leases.health()
        return RedisView(
            state="ok" if health.state == "ok" else "degraded",
            url=self._names.redis_url,
            embedded=self._names.embedded,
            detail=health.detail,
            leases_held=leases.leases_held,
        )

    def _upstream(self) -> UpstreamView:
        trouble = self._pool.services.claims.trouble or self._pool.sweep.trouble
        return UpstreamView(
            state="degraded" if trouble else "ok",
            url=self._names.upstream,
            sweep_state=self._pool.sweep.state,
            detail=trouble,
        )

    def _degraded(self) -> list[str]:
        """Everything that a person should look at."""
        redis, upstream = self._redis(), self._upstream()
        reasons = []
        if redis.state != "ok":
            reasons.append(f"redis: {redis.detail}")
        if upstream.state != "ok":
            reasons.append(f"upstream: {upstream.detail}")
        reasons += [
            f"slot {slot.number}: processes {pids} of run {slot.run_id} cannot be killed"
            for slot in self._pool.slots.values()
            if slot.training is not None and (pids := slot.training.attempt.stuck)
        ]
        if trouble := self._pool.services.agents.trouble:
            reasons.append(f"agents: {trouble}")
        reasons += self._pool.services.guards.reasons()
        return reasons


def _stay(line: str) -> RunView | None:
    """A stay as a node has told of it; None for one of a version that we do not know."""
    try:
        return msgspec.json.decode(line, type=RunView)
    except msgspec.DecodeError:
        return None
