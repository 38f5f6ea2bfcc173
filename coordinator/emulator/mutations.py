"""The GraphQL mutations: each turns its input into one call of the backend, and answers what
changed.

Owns the names of inputs and answers. Rules about states are the backend's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml

from coordinator.emulator.records import Run, RunKey, RunState, Sweep, SweepState, decode_id
from coordinator.emulator.search import SearchError
from coordinator.emulator.state import BackendError
from coordinator.emulator.typed import Typed

if TYPE_CHECKING:
    from coordinator.emulator.typed import Context

Input = Mapping[str, Any]

_KEPT: Final = (
    *("displayName", "description", "notes", "commit", "host", "jobType", "groupName", "tags"),
    *("jobProgram", "jobRepo", "debug"),
)


def upsert_sweep(ctx: Context, wanted: Input) -> object:
    """`wandb sweep`: create a sweep, change its configuration or set its state."""
    try:
        sweep = _sweep_for(ctx, wanted)
    except (SearchError, yaml.YAMLError) as error:
        raise BackendError(400, str(error)) from error
    if wanted.get("state"):
        ctx.backend.set_sweep_state(sweep, SweepState(str(wanted["state"]).upper()), ctx.now)
    return {"sweep": Typed("Sweep", sweep), "configValidationWarnings": []}


def _sweep_for(ctx: Context, wanted: Input) -> Sweep:
    """The sweep that is meant, new or with its configuration changed."""
    opaque = wanted.get("id")
    if opaque is None:
        entity = wanted.get("entityName") or ctx.backend.default_entity
        project = wanted.get("projectName") or "uncategorized"
        return ctx.backend.create_sweep(entity, project, str(wanted.get("config")), ctx.now)
    sweep = _sweep(ctx, str(opaque))
    if wanted.get("config"):
        ctx.backend.update_config(sweep, str(wanted["config"]), ctx.now)
    return sweep


def create_agent(ctx: Context, wanted: Input) -> object:
    """Register an agent."""
    entity = wanted.get("entityName") or ctx.backend.default_entity
    project, name = str(wanted.get("projectName") or "uncategorized"), str(wanted.get("sweep"))
    sweep = ctx.backend.sweeps.get((entity, project, name))
    if sweep is None:
        raise BackendError(
            404, f"could not find sweep {entity}/{project}/{name} during createAgent"
        )
    agent = ctx.backend.create_agent(sweep, str(wanted.get("host")), ctx.now)
    return {"agent": Typed("Agent", (sweep, agent))}


def agent_heartbeat(ctx: Context, wanted: Input) -> object:
    """Ask for commands; `commands` is JSON inside JSON."""
    agent_id = str(wanted.get("id"))
    commands = ctx.backend.heartbeat(agent_id, held_runs(wanted), ctx.now)
    return {
        "agent": Typed("Agent", ctx.backend.agents[agent_id]),
        "commands": json.dumps(commands),
    }


def held_runs(wanted: Input) -> list[str]:
    """The runs that a heartbeat says its agent is running."""
    return [run_id for run_id, alive in json.loads(wanted.get("runState") or "{}").items() if alive]


def upsert_bucket(ctx: Context, wanted: Input) -> object:
    """A training process starts a run, or someone edits one (by its opaque ID)."""
    opaque = wanted.get("id")
    inserted = False
    if opaque:
        run = _run(ctx, str(opaque))
    else:
        entity = wanted.get("entityName") or ctx.backend.default_entity
        project = wanted.get("modelName") or "uncategorized"
        key = (entity, project, str(wanted.get("name")))
        run, inserted = _start_or_update(ctx, key, wanted)
    _keep(run, wanted)
    return {
        "bucket": Typed("Run", run),
        "inserted": inserted,
        "serverSettings": Typed("ServerSettings", None),
    }


def _start_or_update(ctx: Context, key: RunKey, wanted: Input) -> tuple[Run, bool]:
    """Tell a start from an edit, for which the SDK sends the same document.

    An edit comes from a process that this run knows: over a connection of its own, without a host
    (old SDKs), or with a writer in its configuration that has joined since the last start
    (wandb-core).
    """
    run = ctx.backend.runs.get(key)
    writers = _writers(wanted)
    if run is not None and run.state is RunState.RUNNING:
        known = ctx.peer in run.peers or not wanted.get("host") or writers - run.writers
        if known:
            run.peers.add(ctx.peer)
            return run, False
    run, inserted = ctx.backend.init_run(key, wanted.get("sweep"), ctx.now)
    run.peers, run.writers = {ctx.peer}, writers
    return run, inserted


def _writers(wanted: Input) -> frozenset[str]:
    config = json.loads(wanted.get("config") or "{}")
    return frozenset(((config.get("_wandb") or {}).get("value") or {}).get("e") or ())


def _keep(run: Run, wanted: Input) -> None:
    run.attributes.update({name: wanted[name] for name in _KEPT if wanted.get(name) is not None})
    if wanted.get("config"):
        run.config.update(json.loads(wanted["config"]))
    if wanted.get("summaryMetrics"):
        run.summary = json.loads(wanted["summaryMetrics"])


def upsert_model(ctx: Context, wanted: Input) -> object:
    """Create a project."""
    key = (wanted.get("entityName") or ctx.backend.default_entity, str(wanted.get("name")))
    inserted = key not in ctx.backend.projects
    ctx.backend.projects.setdefault(key, ctx.now)
    project = Typed("Project", key)
    return {"model": project, "project": project, "inserted": inserted}


def create_run_files(ctx: Context, wanted: Input) -> object:
    """Give out one upload address for each file."""
    path = "/".join(str(wanted.get(key)) for key in ("entityName", "projectName", "runName"))
    names = wanted.get("files") or []
    return {
        "runID": wanted.get("runName"),
        "uploadHeaders": [],
        "files": [
            {"name": name, "uploadUrl": f"{ctx.base_url}/_storage/{path}/{name}"} for name in names
        ],
    }


def stop_run(ctx: Context, wanted: Input) -> object:
    """`Run.stop()` of the public API, the same as the button of the web page."""
    ctx.backend.book.request_stop(_run(ctx, str(wanted.get("id"))), ctx.now)
    return {"success": True}


def update_run_state(ctx: Context, wanted: Input) -> object:
    """`Run.update_state()`; the real server refuses it for runs of a sweep."""
    run = _run(ctx, str(wanted.get("id")))
    if run.sweep_id is not None:
        raise BackendError(400, "Sweep runs cannot have their state updated")
    run.state = RunState.FAILED if wanted.get("state") == "failed" else RunState.RESERVED
    return {"success": True}


def delete_run(ctx: Context, wanted: Input) -> object:
    """Forget a run."""
    run = _run(ctx, str(wanted.get("id")))
    ctx.backend.forget(run)
    return {"clientMutationId": None}


def _run(ctx: Context, opaque: str) -> Run:
    match decode_id(opaque):
        case [run_id, project, entity] if (entity, project, run_id) in ctx.backend.runs:
            return ctx.backend.runs[entity, project, run_id]
        case _:
            raise BackendError(404, f"run {opaque} not found")


def _sweep(ctx: Context, opaque: str) -> Sweep:
    match decode_id(opaque):
        case [sweep_id, project, entity] if (entity, project, sweep_id) in ctx.backend.sweeps:
            return ctx.backend.sweeps[entity, project, sweep_id]
        case _:
            raise BackendError(404, f"sweep {opaque} not found")
