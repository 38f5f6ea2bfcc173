"""Answers `coordinatorctl leases …` and `nodes`: what an operator sees and does over all nodes.

Owns the words for what a steal or a release met. It must never decide whether it may be: the
scripts in Redis do, by the fencing token that the operator saw.
"""

from typing import assert_never

from coordinator.core.protocol import (
    Answer,
    Done,
    Failed,
    GetLease,
    GetLeases,
    GetNodes,
    Invalid,
    LeaseRequest,
    Refused,
    ReleaseLease,
    StealLease,
)
from coordinator.errors import CoordinatorError
from coordinator.leases import Freed, FreeStatus, Leases, Operations, StealStatus, Stolen

OFF = Refused('leases are off ([redis] url = "off"): this node knows of no other')


class LeaseCommands:
    """See the module."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    async def handle(self, request: LeaseRequest) -> Answer:
        """The answer to one request; never raises for what a user may type."""
        operations = self._leases.operations
        try:
            if isinstance(request, GetLeases):
                return Done(data=await self._leases.list_leases())
            return OFF if operations is None else await _operate(operations, request)
        except CoordinatorError as error:
            return Failed(str(error))


async def _operate(
    operations: Operations, request: GetLease | ReleaseLease | StealLease | GetNodes
) -> Answer:
    match request:
        case GetLease(run_id):
            detail = await operations.show(run_id)
            return _unknown(run_id) if detail is None else Done(data=detail)
        case GetNodes():
            return Done(data=await operations.nodes())
        case StealLease():
            return await _steal(operations, request)
        case ReleaseLease(run_id, fence, force):
            freed = await operations.release(run_id, fence, force=force)
            return _released(request, freed)
        case _:
            assert_never(request)


async def _steal(operations: Operations, request: StealLease) -> Answer:
    if request.to is not None:
        found = [node for node in await operations.nodes() if node.node == request.to]
        if not found:
            return Invalid(f"no node {request.to!r} was seen within a day; see `nodes`")
        if not found[0].alive:
            silent = round(found[0].silent_seconds)
            return Refused(f"node {request.to} has been silent for {silent} s; see `nodes`")
    stolen = await operations.steal(request.run_id, request.fence, target=request.to or "")
    return _stolen(request, stolen, operations.steal_seconds)


def _stolen(request: StealLease, stolen: Stolen, within_seconds: float) -> Answer:
    run, holder = request.run_id, stolen.holder
    match stolen.status:
        case StealStatus.FREED:
            others = f"{request.to} before all others" if request.to else "others"
            return Done(
                f"{holder} is told at its next renewal to stop run {run}; {others} may claim it "
                f"when its processes are gone, or in {within_seconds:g} s at the latest"
            )
        case StealStatus.MISSING:
            return _unknown(run)
        case StealStatus.CHANGED:
            return _changed(run, request.fence, stolen.fence, holder)
        case StealStatus.RELEASED:
            return _free_already(run)
        case _:
            assert_never(stolen.status)


def _released(request: ReleaseLease, freed: Freed) -> Answer:
    run, holder = request.run_id, freed.holder
    match freed.status:
        case FreeStatus.FREED:
            return Done(f"run {run} is free, {holder} no longer holds it; any node may claim it")
        case FreeStatus.MISSING:
            return _unknown(run)
        case FreeStatus.CHANGED:
            return _changed(run, request.fence, freed.fence, holder)
        case FreeStatus.RELEASED:
            return _free_already(run)
        case FreeStatus.ALIVE:
            return Refused(
                f"{holder} was heard of {freed.silent_seconds:.0f} s ago, so it may train run "
                f"{run}; `leases steal {run} --fence {freed.fence}` makes it stop first, --force "
                "releases all the same"
            )
        case _:
            assert_never(freed.status)


def _unknown(run_id: str) -> Answer:
    return Invalid(
        f"no lease of run {run_id!r} is known (a record is kept for a day after its end); "
        "see `leases ls`"
    )


def _changed(run_id: str, asked: int, fence: int, holder: str) -> Answer:
    return Refused(
        f"the lease of run {run_id} has fence {fence} now, not {asked}; its holder is {holder}: "
        "look again with `leases ls`"
    )


def _free_already(run_id: str) -> Answer:
    return Refused(f"run {run_id} is free already: its holder has released it")
