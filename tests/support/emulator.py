"""Starts the emulator as a process of its own and talks to it, for every test that needs a W&B
backend.

Owns the process and the small requests that stand for people and agents. Synchronous on purpose:
the things under test are other processes, and a test that waits for them has nothing else to do.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

T = TypeVar("T")

API_KEY: Final = "0123456789" * 4
"""Well-formed for every version of wandb (40 characters)."""

_START_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 60.0
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")

_UPSERT_SWEEP: Final = """mutation UpsertSweep($id: ID, $config: String, $state: String,
  $entityName: String, $projectName: String) { upsertSweep(input: {id: $id, config: $config,
  state: $state, entityName: $entityName, projectName: $projectName}) { sweep { id name } } }"""
_SWEEP_ID: Final = """query SweepId($entity: String, $project: String, $sweep: String!) {
  project(name: $project, entityName: $entity) { sweep(sweepName: $sweep) { id } } }"""
_CREATE_AGENT: Final = """mutation CreateAgent($host: String!, $projectName: String,
  $entityName: String, $sweep: String!) { createAgent(input: {host: $host,
  projectName: $projectName, entityName: $entityName, sweep: $sweep}) { agent { id } } }"""
_HEARTBEAT: Final = """mutation Heartbeat($id: ID!, $metrics: JSONString, $runState: JSONString) {
  agentHeartbeat(input: {id: $id, metrics: $metrics, runState: $runState}) {
  agent { id } commands } }"""


def wait_until(what: str, probe: Callable[[], T], seconds: float = 120.0) -> T:
    """Ask again and again until `probe` returns something true; say what was missing if never."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer, also one that refuses."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running emulator."""

    url: str
    process: subprocess.Popen[bytes]
    since: int = -1
    """Events up to this number belong to someone else and are not shown by `events`."""

    # --- what tests read and steer

    def history(self, after: int = -1) -> list[dict[str, Any]]:
        """All events so far, oldest first, from number `after` + 1 on."""
        events: list[dict[str, Any]] = self.request("GET", f"/_emulator/history?after={after}").body
        return events

    def events(self, what: str, **data: object) -> list[dict[str, Any]]:
        """The events of one kind that have these values."""
        return [
            event
            for event in self.history(self.since)
            if event["what"] == what and all(event.get(key) == data[key] for key in data)
        ]

    def state(self) -> dict[str, Any]:
        """Sweeps, runs, counts of operations, faults in force."""
        state: dict[str, Any] = self.request("GET", "/_emulator/state").body
        return state

    def run(self, run_id: str) -> dict[str, Any]:
        """One run as the server sees it."""
        run: dict[str, Any] = self.state()["runs"][run_id]
        return run

    def sweep(self, path: str) -> dict[str, Any]:
        """One sweep as the server sees it."""
        sweep: dict[str, Any] = self.state()["sweeps"][path.rpartition("/")[2]]
        return sweep

    def unknown(self) -> list[dict[str, Any]]:
        """What clients asked that the emulator does not know; empty in every normal flow."""
        gaps = {"unknown_operation", "unknown_path"}
        return [event for event in self.history(self.since) if event["what"] in gaps]

    def faults(self, *rules: Mapping[str, Any], **change: object) -> None:
        """Add fault rules and change behaviour, as `/_emulator/faults` takes them."""
        reply = self.request("POST", "/_emulator/faults", {"add": list(rules), **change})
        assert reply.status == 200, reply

    def stop_run(self, run_id: str) -> None:
        """Do what the stop button of the web page does."""
        assert self.request("POST", f"/_emulator/runs/{run_id}/stop").status == 200

    def silence_run(self, run_id: str) -> None:
        """End a run as if it had been silent for too long."""
        assert self.request("POST", f"/_emulator/runs/{run_id}/silence").status == 200

    # --- what wandb's command line and agents would do, without their start-up time

    def create_sweep(self, config: Mapping[str, Any], project: str = "tests") -> str:
        """Create a sweep; return its path."""
        variables = {"config": yaml.safe_dump(dict(config)), "projectName": project}
        sweep = self.graphql(_UPSERT_SWEEP, variables).body["data"]["upsertSweep"]["sweep"]
        return f"emulator/{project}/{sweep['name']}"

    def set_sweep_state(self, path: str, state: str) -> None:
        """RUNNING, PAUSED, FINISHED (stopped) or CANCELED, as `wandb sweep` sends them."""
        entity, project, sweep = path.split("/")
        where = {"entity": entity, "project": project, "sweep": sweep}
        opaque = self.graphql(_SWEEP_ID, where).body["data"]["project"]["sweep"]["id"]
        assert self.graphql(_UPSERT_SWEEP, {"id": opaque, "state": state}).status == 200

    def create_agent(self, path: str, host: str = "node") -> str:
        """Register an agent; return its ID."""
        entity, project, sweep = path.split("/")
        variables = {"host": host, "entityName": entity, "projectName": project, "sweep": sweep}
        agent: str = self.graphql(_CREATE_AGENT, variables).body["data"]["createAgent"]["agent"][
            "id"
        ]
        return agent

    def heartbeat(self, agent: str, *holding: str) -> list[dict[str, Any]]:
        """What the server tells an agent that runs `holding`."""
        reply = self.heartbeat_reply(agent, *holding)
        commands: list[dict[str, Any]] = json.loads(
            reply.body["data"]["agentHeartbeat"]["commands"]
        )
        return commands

    def heartbeat_reply(self, agent: str, *holding: str) -> Reply:
        """The same, as the whole answer."""
        state = json.dumps(dict.fromkeys(holding, True))
        return self.graphql(_HEARTBEAT, {"id": agent, "metrics": "{}", "runState": state})

    def graphql(self, query: str, variables: Mapping[str, Any], key: str = API_KEY) -> Reply:
        """One GraphQL request."""
        return self.request("POST", "/graphql", {"query": query, "variables": variables}, key)

    def file_stream(self, path: str, **post: object) -> Reply:
        """One post of a training process; `path` is entity/project/run."""
        return self.request("POST", f"/files/{path}/file_stream", post)

    def request(self, method: str, path: str, body: object = None, key: str = API_KEY) -> Reply:
        """One HTTP request; a refusal is an answer too."""
        credentials = base64.b64encode(f"api:{key}".encode()).decode()
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {credentials}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:
                return Reply(answer.status, dict(answer.headers), _content(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), _content(error.read()))

    # --- the processes

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """An environment for wandb that knows this server, and nothing of the machine's own."""
        home.mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return kept | {
            "HOME": str(home),
            "NETRC": str(home / "netrc"),
            "NO_PROXY": "127.0.0.1",
            "PYTHONUNBUFFERED": "1",
            "WANDB_API_KEY": API_KEY,
            "WANDB_BASE_URL": self.url,
            "WANDB_ERROR_REPORTING": "false",
            # Old versions ask the package index for news, and the system metrics cost time.
            "WANDB__DISABLE_UPDATE_CHECK": "true",
            "WANDB__DISABLE_STATS": "true",
            "WANDB_X_DISABLE_STATS": "true",
            **more,
        }

    def stop(self) -> int:
        """End the emulator; return its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(timeout=_START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _content(body: bytes) -> Any:
    try:
        return json.loads(body or b"null")
    except ValueError:
        return body.decode(errors="replace")


def start_emulator(directory: Path, *flags: str) -> Emulator:
    """Start an emulator on a free port of the loopback interface; its files go to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    ready = directory / "emulator.url"
    ready.unlink(missing_ok=True)
    files = ["--ready-file", str(ready), "--history-file", str(directory / "emulator.jsonl")]
    with (directory / "emulator.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator.emulator", "--port", "0", *files, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def is_up() -> bool:
        assert process.poll() is None, (directory / "emulator.log").read_text()
        return ready.exists()

    wait_until("emulator is ready", is_up, _START_SECONDS)
    return Emulator(ready.read_text(), process)
