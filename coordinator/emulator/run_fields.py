"""The GraphQL type `Run`: what `wandb.Api()` shows of a run, and what a resuming SDK asks for.

Owns the fields of one run. It must never change a run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from coordinator.emulator.lifecycle import last_step
from coordinator.emulator.records import Run, RunState, encode_id
from coordinator.emulator.typed import Arguments, Context, Resolver, Typed, connection

if TYPE_CHECKING:
    from collections.abc import Mapping


def _history(_: Context, run: Run, args: Arguments) -> object:
    low, high = args.get("minStep"), args.get("maxStep")
    rows = run.history
    if low is not None or high is not None:
        top = float("inf") if high is None else high
        rows = [row for row in rows if (low or 0) <= json.loads(row).get("_step", 0) < top]
    return rows[: int(args.get("samples") or len(rows) or 1)]


def _sampled_history(_: Context, run: Run, args: Arguments) -> object:
    rows = [json.loads(row) for row in run.history]
    specs = args.get("specs") or []
    wanted = [json.loads(spec) for spec in (specs if isinstance(specs, list) else [specs])]
    return [_sample(rows, spec) for spec in wanted]


def _sample(rows: list[dict[str, Any]], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    keys = spec.get("keys")
    if not keys:
        return rows
    full = [row for row in rows if all(key in row for key in keys)]
    return [{key: row[key] for key in keys} for row in full[: int(spec.get("samples", 500))]]


def _history_keys(_: Context, run: Run, __: Arguments) -> object:
    keys: dict[str, Any] = {}
    for row in run.history:
        for key in json.loads(row):
            counts = keys.setdefault(key, {"typeCounts": [{"type": "number", "count": 0}]})
            counts["typeCounts"][0]["count"] += 1
    step = last_step(run)
    return {"keys": keys, "lastStep": -1 if step is None else step, "sets": []}


def _files(ctx: Context, run: Run, args: Arguments) -> object:
    names = args.get("names") or args.get("files") or sorted(run.files)
    upload = f"{ctx.base_url}/_storage/{run.entity}/{run.project}/{run.run_id}/"
    nodes = [
        {
            "__typename": "File",
            "id": encode_id("File", run.run_id, name),
            "name": name,
            "url": upload + name,
            "directUrl": upload + name,
            "uploadUrl": upload + name,
            "sizeBytes": len(run.files.get(name, b"")),
            "mimetype": "application/octet-stream",
            "updatedAt": ctx.now.iso,
            "md5": "",
            "storagePath": name,
        }
        for name in names
    ]
    return connection(nodes, args)


def _project_object(run: Run) -> Typed:
    return Typed("Project", (run.entity, run.project))


def _attribute(name: str) -> Resolver:
    return lambda _, run, __: run.attributes.get(name)


def _wandb_config(_: Context, run: Run, args: Arguments) -> object:
    hidden = (run.config.get("_wandb") or {}).get("value") or {}
    return json.dumps({key: hidden[key] for key in args.get("keys") or hidden if key in hidden})


def _config(run: Run) -> str:
    chosen = {name: {"value": value, "desc": None} for name, value in run.args.items()}
    return json.dumps({**chosen, **run.config})


_ATTRIBUTES: Final = (
    *("description", "notes", "commit", "host", "jobType", "groupName"),
    *("jobProgram", "jobRepo", "debug"),
)

RUN: Final[dict[str, Resolver]] = {
    **{name: _attribute(name) for name in _ATTRIBUTES},
    "id": lambda _, run, __: run.storage_id,
    "name": lambda _, run, __: run.run_id,
    "displayName": lambda _, run, __: run.attributes.get("displayName") or run.run_id,
    "tags": lambda _, run, __: run.attributes.get("tags") or [],
    "group": _attribute("groupName"),
    "sweepName": lambda _, run, __: run.sweep_id,
    "state": lambda _, run, __: run.shown_state,
    "exitcode": lambda _, run, __: run.exit_code,
    "failed": lambda _, run, __: run.state is RunState.FAILED,
    "running": lambda _, run, __: run.state is RunState.RUNNING,
    "stopped": lambda _, run, __: run.stop_requested,
    "shouldStop": lambda _, run, __: run.stop_requested,
    "readOnly": lambda _, __, ___: False,
    "createdAt": lambda _, run, __: run.created.iso,
    "heartbeatAt": lambda _, run, __: (run.posted or run.created).iso,
    "config": lambda _, run, __: _config(run),
    "wandbConfig": _wandb_config,
    "summaryMetrics": lambda _, run, __: json.dumps(run.summary),
    "systemMetrics": lambda _, run, __: run.events[-1] if run.events else "{}",
    "historyLineCount": lambda _, run, __: len(run.history),
    "eventsLineCount": lambda _, run, __: len(run.events),
    "logLineCount": lambda _, run, __: run.log_lines,
    # Without history a list of one empty row: wandb's service up to 0.19 breaks on an empty list,
    # yet resumed runs that had logged nothing (wandb/wandb#6480).
    "historyTail": lambda _, run, __: json.dumps(run.history[-1:] or ["{}"]),
    "eventsTail": lambda _, run, __: json.dumps(run.events[-1:]),
    "historyKeys": _history_keys,
    "history": _history,
    "events": lambda _, run, __: run.events,
    "sampledHistory": _sampled_history,
    "parquetHistory": lambda _, run, __: {
        "parquetUrls": [],
        "liveData": [json.loads(row) for row in run.history],
    },
    "logLines": lambda _, __, args: connection([], args),
    "files": _files,
    "fileCount": lambda _, run, __: len(run.files),
    "project": lambda _, run, __: _project_object(run),
    "projectId": lambda _, __, ___: 1,
    "runInfo": lambda _, __, ___: None,
}
