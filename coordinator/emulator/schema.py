"""Every GraphQL type and field that wandb's clients ask for, and how the backend answers it.

Owns the tables `TYPES[type][field]`. A resolver reads the backend, a mutation calls one method of
it; rules about states do not belong here. The names are those of the public GraphQL API as wandb
0.16 to 0.31 use it.
"""

from __future__ import annotations

from typing import Final

from coordinator.emulator import filters, mutations
from coordinator.emulator.records import Agent, Run, Sweep, encode_id
from coordinator.emulator.run_fields import RUN
from coordinator.emulator.typed import Arguments, Context, Resolver, Typed, connection

Project = tuple[str, str]


def _viewer(ctx: Context, _: object, __: Arguments) -> object:
    entity = ctx.backend.default_entity
    return {
        "__typename": "User",
        "id": encode_id("User", "1"),
        "entity": entity,
        "username": entity,
        "name": entity,
        "email": f"{entity}@example.com",
        "admin": False,
        "flags": "{}",
        "deletedAt": None,
        "apiKeys": connection([], {}),
        "teams": connection([{"__typename": "Entity", "name": entity}], {}),
    }


def _user(ctx: Context, _: object, args: Arguments) -> object:
    return _viewer(ctx, None, args)


def _entity(ctx: Context, _: object, args: Arguments) -> object:
    name = args.get("name") or ctx.backend.default_entity
    return {
        "__typename": "Entity",
        "id": encode_id("Entity", name),
        "name": name,
        "isTeam": False,
        "available": True,
        "readOnly": False,
        "organization": None,
        "defaultAccess": "PRIVATE",
    }


def _project(ctx: Context, _: object, args: Arguments) -> Typed | None:
    key = (
        args.get("entityName") or ctx.backend.default_entity,
        args.get("name") or "uncategorized",
    )
    return Typed("Project", key) if key in ctx.backend.projects else None


def _projects(ctx: Context, _: object, args: Arguments) -> object:
    entity = args.get("entityName") or ctx.backend.default_entity
    return connection(
        [Typed("Project", key) for key in ctx.backend.projects if key[0] == entity], args
    )


def _run(ctx: Context, project: Project, args: Arguments) -> Typed | None:
    run = ctx.backend.runs.get((*project, str(args.get("name"))))
    return Typed("Run", run) if run is not None and run.visible else None


def _runs_of_project(ctx: Context, project: Project, args: Arguments) -> object:
    return connection([Typed("Run", run) for run in _selected(ctx, project, args)], args)


def _selected(ctx: Context, project: Project, args: Arguments) -> list[Run]:
    runs = [run for key, run in ctx.backend.runs.items() if key[:2] == project]
    return filters.select(runs, args.get("filters"), args.get("order"))


def _sweep(ctx: Context, project: Project, args: Arguments) -> Typed | None:
    sweep = ctx.backend.sweeps.get((*project, str(args.get("sweepName"))))
    return Typed("Sweep", sweep) if sweep is not None else None


def _sweeps_of_project(ctx: Context, project: Project, args: Arguments) -> object:
    found = [sweep for key, sweep in ctx.backend.sweeps.items() if key[:2] == project]
    return connection([Typed("Sweep", sweep) for sweep in found], args)


def _runs_of_sweep(ctx: Context, sweep: Sweep, args: Arguments) -> object:
    visible = [Typed("Run", run) for run in ctx.backend.runs_of(sweep) if run.visible]
    return connection(visible, args)


def _agent(_: Context, sweep: Sweep, args: Arguments) -> Typed | None:
    agent = sweep.agents.get(str(args.get("agentName")))
    return Typed("Agent", (sweep, agent)) if agent is not None else None


def _runs_of_agent(ctx: Context, owner: tuple[Sweep, Agent], args: Arguments) -> object:
    sweep, agent = owner
    own = [run for run in ctx.backend.runs_of(sweep) if run.agent_id == agent.agent_id]
    return connection([Typed("Run", run) for run in own if run.visible], args)


def _best_loss(ctx: Context, sweep: Sweep, _: Arguments) -> object:
    metric = sweep.config.get("metric") or {}
    values = [run.summary.get(str(metric.get("name"))) for run in ctx.backend.runs_of(sweep)]
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return None
    return max(numbers) if metric.get("goal") == "maximize" else min(numbers)


_SWEEP: Final[dict[str, Resolver]] = {
    "id": lambda _, sweep, __: sweep.storage_id,
    "name": lambda _, sweep, __: sweep.sweep_id,
    "displayName": lambda _, sweep, __: sweep.config.get("name"),
    "description": lambda _, sweep, __: sweep.config.get("description"),
    "method": lambda _, sweep, __: sweep.search.method,
    "state": lambda _, sweep, __: sweep.state.value,
    "config": lambda _, sweep, __: sweep.config_yaml,
    "createdAt": lambda _, sweep, __: sweep.created.iso,
    "updatedAt": lambda _, sweep, __: (sweep.updated or sweep.created).iso,
    "heartbeatAt": lambda ctx, _, __: ctx.now.iso,
    "earlyStopJobRunning": lambda _, __, ___: False,
    "controller": lambda _, __, ___: None,
    "controllerRunName": lambda _, __, ___: None,
    "scheduler": lambda _, __, ___: None,
    "bestLoss": _best_loss,
    "runCount": lambda ctx, sweep, __: sum(run.visible for run in ctx.backend.runs_of(sweep)),
    "runCountExpected": lambda _, sweep, __: sweep.search.expected,
    "runs": _runs_of_sweep,
    "agent": _agent,
    "agents": lambda _, sweep, args: connection(
        [Typed("Agent", (sweep, agent)) for agent in sweep.agents.values()], args
    ),
    "project": lambda _, sweep, __: Typed("Project", (sweep.entity, sweep.project)),
}

_AGENT: Final[dict[str, Resolver]] = {
    "id": lambda _, owner, __: owner[1].agent_id,
    "name": lambda _, owner, __: owner[1].agent_id,
    "host": lambda _, owner, __: owner[1].host,
    "state": lambda _, __, ___: "RUNNING",
    "totalRuns": lambda _, owner, __: owner[1].claims,
    "createdAt": lambda _, owner, __: owner[1].created.iso,
    "heartbeatAt": lambda _, owner, __: owner[1].heard.iso,
    "runs": _runs_of_agent,
}

_PROJECT: Final[dict[str, Resolver]] = {
    "id": lambda _, project, __: encode_id("Project", project[1], project[0]),
    "internalId": lambda _, __, ___: encode_id("ProjectInternalId", "1"),
    "name": lambda _, project, __: project[1],
    "entityName": lambda _, project, __: project[0],
    "entity": lambda ctx, project, __: _entity(ctx, None, {"name": project[0]}),
    "description": lambda _, __, ___: None,
    "createdAt": lambda ctx, project, __: ctx.backend.projects[project].iso,
    "isBenchmark": lambda _, __, ___: False,
    "readOnly": lambda _, __, ___: False,
    "user": _user,
    "run": _run,
    "bucket": _run,
    "runs": _runs_of_project,
    "buckets": _runs_of_project,
    "runCount": lambda ctx, project, args: len(_selected(ctx, project, args)),
    "sweep": _sweep,
    "sweeps": _sweeps_of_project,
    "totalSweeps": lambda ctx, project, __: sum(key[:2] == project for key in ctx.backend.sweeps),
}

_SERVER_INFO: Final[dict[str, Resolver]] = {
    "cliVersionInfo": lambda _, __, ___: {
        "max_cli_version": "0.999.0",
        "min_cli_version": "0.10.0",
    },
    "latestLocalVersionInfo": lambda _, __, ___: None,
    "features": lambda _, __, ___: [],
}

_QUERY: Final[dict[str, Resolver]] = {
    "viewer": _viewer,
    "entity": _entity,
    "project": _project,
    "model": _project,
    "models": _projects,
    "serverInfo": lambda _, __, ___: Typed("ServerInfo", None),
    "organization": lambda _, __, ___: None,
}

_SERVER_SETTINGS: Final[dict[str, Resolver]] = {"serverMessages": lambda _, __, ___: []}

TYPES: Final[dict[str, dict[str, Resolver]]] = {
    "Query": _QUERY,
    "Mutation": {
        "upsertSweep": lambda ctx, _, args: mutations.upsert_sweep(ctx, args["input"]),
        "createAgent": lambda ctx, _, args: mutations.create_agent(ctx, args["input"]),
        "agentHeartbeat": lambda ctx, _, args: mutations.agent_heartbeat(ctx, args["input"]),
        "upsertBucket": lambda ctx, _, args: mutations.upsert_bucket(ctx, args["input"]),
        "upsertModel": lambda ctx, _, args: mutations.upsert_model(ctx, args["input"]),
        "createRunFiles": lambda ctx, _, args: mutations.create_run_files(ctx, args["input"]),
        "markRunFilesUploaded": lambda _, __, ___: {"success": True},
        "notifyScriptableRunAlert": lambda _, __, ___: {"success": True},
        "stopRun": lambda ctx, _, args: mutations.stop_run(ctx, args["input"]),
        "updateRunState": lambda ctx, _, args: mutations.update_run_state(ctx, args["input"]),
        "deleteRun": lambda ctx, _, args: mutations.delete_run(ctx, args["input"]),
    },
    "Run": {**RUN, "user": _user},
    "Sweep": _SWEEP,
    "Agent": _AGENT,
    "Project": _PROJECT,
    "ServerInfo": _SERVER_INFO,
    "ServerSettings": _SERVER_SETTINGS,
}
