"""The few W&B documents that we read or change. Everything else passes through untouched.

Owns their shape as seen on the wire from wandb 0.13 to 0.31: GraphQL over POST, sweep
configuration as YAML text, agent commands as a JSON string inside JSON. Unknown documents give
None, and the caller passes them on unchanged: we must never break a new wandb.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from coordinator.core.model import CommandKind, SweepState
from coordinator.core.sweep import SweepWork

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
"""What the agent runs when the sweep has no `command`. Source: wandb, wandb_agent.py,
Agent.DEFAULT_SWEEP_COMMAND."""
HIDDEN_ARGUMENT = "_wandb"
"""Seen in the arguments of `resume` commands, where it kills users' argument parsers. Source:
github.com/wandb/wandb/issues/4237."""


@dataclass(frozen=True, slots=True)
class Query:
    """One GraphQL request."""

    operation: str
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrainCommand:
    """`run` or `resume`: the server wants `run_id` trained with these arguments."""

    kind: CommandKind
    run_id: str
    program: str
    args: Mapping[str, Any]
    raw: Mapping[str, Any]
    """The unchanged command, for the agent."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The answer to a heartbeat, in order of arrival."""

    train: tuple[TrainCommand, ...]
    stop: tuple[str, ...]
    """Run IDs that a user stopped."""
    exit: bool
    other: tuple[Mapping[str, Any], ...]


def parse_query(body: bytes) -> Query | None:
    """Read a GraphQL request; None if the body is not one."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    match document:
        case {"query": str(text), **rest}:
            variables = rest.get("variables")
            name = rest.get("operationName") or _operation_name(text)
            return Query(str(name), variables if isinstance(variables, dict) else {})
        case _:
            return None


def _operation_name(text: str) -> str:
    """The word after `query` or `mutation`; "" for an anonymous document."""
    words = text.replace("(", " ( ").replace("{", " { ").split(maxsplit=2)
    return words[1] if len(words) > 1 and words[0] in {"query", "mutation"} else ""


def is_sweep_query(query: Query) -> bool:
    """True for the request for the sweep's configuration that each agent sends first."""
    return query.operation == "SweepWithRuns"


def is_registration(query: Query) -> bool:
    """True for the request that registers an agent."""
    return query.operation == "CreateAgent"


def is_heartbeat(query: Query) -> bool:
    """True for an agent's heartbeat."""
    return query.operation == "Heartbeat" and "runState" in query.variables


def running_runs(query: Query) -> tuple[str, ...]:
    """Run IDs that a heartbeat reports as running; empty for an idle agent."""
    state = query.variables.get("runState")
    try:
        table = json.loads(state) if isinstance(state, str) else state
    except ValueError:
        return ()
    return tuple(run for run, lives in table.items() if lives) if isinstance(table, dict) else ()


def put_in_front(body: bytes, shim: Sequence[str]) -> bytes | None:
    """Change a sweep document so that every training starts behind `shim`.

    None if the body is unknown.
    """
    try:
        document = json.loads(body)
        sweep = document["data"]["project"]["sweep"]
        config = yaml.safe_load(sweep["config"])
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return None  # AttributeError: raised by PyYAML if the configuration is not text
    if not isinstance(config, dict):
        return None
    command = config.get("command")
    if not (isinstance(command, list) and command):
        command = list(DEFAULT_COMMAND)
    config["command"] = [*shim, *command]
    sweep["config"] = yaml.safe_dump(config, sort_keys=False)
    return json.dumps(document).encode()


def sweep_facts(body: bytes) -> SweepState | None:
    """The sweep's state in an answer to `SweepWithRuns`; None if there is no such sweep."""
    try:
        return SweepState.of(json.loads(body)["data"]["project"]["sweep"]["state"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def agent_id(body: bytes) -> str | None:
    """The ID that the server gave an agent, from the answer to `CreateAgent`."""
    try:
        return str(json.loads(body)["data"]["createAgent"]["agent"]["id"])
    except (ValueError, KeyError, TypeError):
        return None


def registration_answer(agent: str) -> bytes:
    """An answer to `CreateAgent` as the server would give it."""
    return json.dumps({"data": {"createAgent": {"agent": {"id": agent}}}}).encode()


def parse_orders(body: bytes) -> Orders | None:
    """Read the answer to a heartbeat; None if it is another document."""
    try:
        text = json.loads(body)["data"]["agentHeartbeat"]["commands"]
        commands = json.loads(text)
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(commands, list):
        return None
    train: list[TrainCommand] = []
    stop: list[str] = []
    other: list[Mapping[str, Any]] = []
    leave = False
    for command in commands:
        match command:
            case {"type": "run" | "resume" as kind, "run_id": str(run_id), "args": dict(args)}:
                train.append(_train_command(CommandKind(kind), run_id, args, command))
            case {"type": "stop", "run_id": str(run_id)}:
                stop.append(run_id)
            case {"type": "exit"}:
                leave = True
            case _:
                other.append(command)
    return Orders(tuple(train), tuple(stop), leave, tuple(other))


def _train_command(
    kind: CommandKind, run_id: str, args: dict[str, Any], raw: dict[str, Any]
) -> TrainCommand:
    kept = {name: value for name, value in args.items() if name != HIDDEN_ARGUMENT}
    program = str(raw.get("program") or "")
    return TrainCommand(kind, run_id, program, kept, {**raw, "args": kept})


def heartbeat_answer(agent: str, commands: Sequence[Mapping[str, Any]]) -> bytes:
    """An answer to a heartbeat as the server would give it."""
    beat = {"agent": {"id": agent}, "commands": json.dumps(list(commands))}
    return json.dumps({"data": {"agentHeartbeat": beat}}).encode()


def error_text(body: bytes) -> str:
    """The server's error message on one line; "" if there is none."""
    try:
        document = json.loads(body)
    except ValueError:
        text = body[:200].decode(errors="replace")
    else:
        text = _error_words(document) if isinstance(document, dict) else ""
    return " ".join(text.split())


def _error_words(document: Mapping[str, Any]) -> str:
    errors = document.get("errors")
    if not isinstance(errors, list):
        return str(document.get("error", ""))
    words = [error.get("message") if isinstance(error, dict) else error for error in errors]
    return "; ".join(str(word) for word in words if word)


# --- our own requests -----------------------------------------------------------------------------
SWEEP_STATE = """query SweepState($entity: String, $project: String, $sweep: String!) {
  project(name: $project, entityName: $entity) { sweep(sweepName: $sweep) { id name state config } }
}"""
RUN_STATE = """query RunState($entity: String, $project: String, $run: String!) {
  project(name: $project, entityName: $entity) { run(name: $run) { id name state heartbeatAt } }
}"""
SWEEP_WORK = """query SweepWork($entity: String, $project: String, $sweep: String!,
  $filters: JSONString) { project(name: $project, entityName: $entity) {
  sweep(sweepName: $sweep) { id state runCount runCountExpected }
  runs(filters: $filters, first: 100) { edges { node { name heartbeatAt } } } } }"""
VIEWER = "query Viewer { viewer { id username entity } }"


def question(text: str, variables: Mapping[str, Any]) -> bytes:
    """A GraphQL request body."""
    return json.dumps({"query": text, "variables": dict(variables)}).encode()


def queued_runs_filter(sweep: str) -> str:
    """Filter for the runs of a project in the queue of a sweep, as `wandb.Api` sends it."""
    return json.dumps({"$and": [{"sweep": sweep}, {"state": "preempted"}]})


def sweep_work(body: bytes) -> SweepWork | None:
    """The answer to SWEEP_WORK; None if there is no such sweep."""
    try:
        project = json.loads(body)["data"]["project"]
        sweep, nodes = project["sweep"], [edge["node"] for edge in project["runs"]["edges"]]
        queued = tuple(f"{node['name']}@{node.get('heartbeatAt')}" for node in nodes)
        return SweepWork(
            SweepState.of(sweep["state"]), sweep["runCount"], sweep["runCountExpected"], queued
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def run_state(body: bytes) -> str | None:
    """The state of a run in upper case; None if the server does not know the run."""
    try:
        return str(json.loads(body)["data"]["project"]["run"]["state"]).upper()
    except (ValueError, KeyError, TypeError):
        return None


def run_heartbeat(body: bytes) -> datetime | None:
    """When the server last heard of a run, None if unknown; W&B sends UTC without a mark."""
    try:
        heard = datetime.fromisoformat(json.loads(body)["data"]["project"]["run"]["heartbeatAt"])
    except (ValueError, KeyError, TypeError):
        return None
    return heard if heard.tzinfo else heard.replace(tzinfo=UTC)
