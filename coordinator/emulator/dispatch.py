"""Which run an idle agent gets: the queue first, then a new configuration; and to whom again.

Owns the order of hand-outs and the racy queue, the known fault of the real server in which several
idle agents get one re-queued run. It must never change a run's state; `state` does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.emulator.faults import Behaviour
    from coordinator.emulator.records import QueueEntry, Run, Sweep

Command = dict[str, Any]

_HIDDEN_ARGUMENT: dict[str, Any] = {"value": {"cli_version": "0.0.0", "is_jupyter_run": False}}


def next_entry(
    sweep: Sweep, agent_id: str, monotonic: float, behaviour: Behaviour
) -> QueueEntry | None:
    """The first queue entry that this agent may have, after dropping those whose race is over."""
    sweep.queue = [entry for entry in sweep.queue if _is_open(entry, monotonic, behaviour)]
    return next((entry for entry in sweep.queue if agent_id not in entry.handed_to), None)


def mark_handed(
    sweep: Sweep, entry: QueueEntry, agent_id: str, monotonic: float, behaviour: Behaviour
) -> bool:
    """Note a hand-out; say whether it was a duplicate. Entries without a race leave the queue."""
    duplicate = entry.first_handed_at is not None
    if not duplicate:
        entry.first_handed_at = monotonic
    entry.handed_to.add(agent_id)
    if not _is_open(entry, monotonic, behaviour) and entry in sweep.queue:
        sweep.queue.remove(entry)
    return duplicate


def is_waiting(entry: QueueEntry) -> bool:
    """Whether nobody was given this entry yet."""
    return entry.first_handed_at is None


def command_for(entry: QueueEntry, run: Run, sweep: Sweep, behaviour: Behaviour) -> Command:
    """The `run` or `resume` command as it stands in the answer to a heartbeat."""
    arguments: dict[str, Any] = {name: {"value": value} for name, value in run.args.items()}
    if entry.command == "resume" and behaviour.wandb_arg:
        arguments["_wandb"] = _HIDDEN_ARGUMENT
    return {
        "type": entry.command,
        "run_id": run.run_id,
        "args": arguments,
        "program": sweep.config.get("program"),
        "run_storage_id": run.storage_id,
    }


def _is_open(entry: QueueEntry, monotonic: float, behaviour: Behaviour) -> bool:
    if entry.first_handed_at is None:
        return True
    if entry.limit is not None and len(entry.handed_to) >= entry.limit:
        return False
    return monotonic - entry.first_handed_at < behaviour.racy_window
