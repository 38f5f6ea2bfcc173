"""The parts of the emulator that are plain values: search, documents, filters, the state table."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.emulator import filters, graphql
from coordinator.emulator.document import DocumentError, Field, Variable, parse
from coordinator.emulator.lifecycle import (
    Chunk,
    Post,
    last_step,
    state_after_exit,
    state_after_silence,
    take_in,
)
from coordinator.emulator.records import Now, Run, RunState, decode_id, encode_id
from coordinator.emulator.search import Search, SearchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.emulator import Emulator


def search(method: str, parameters: dict[str, Any], **more: Any) -> Search:
    """A search with a fixed seed."""
    return Search({"method": method, "parameters": parameters, **more}, random.Random(3))


def points(found: Search) -> list[dict[str, Any]]:
    """All that is left in a search."""
    result: list[dict[str, Any]] = []
    while (point := found.next()) is not None:
        result.append(point)
    return result


# --- search


def test_grid_makes_each_combination_once() -> None:
    grid = search("grid", {"a": {"values": [1, 2]}, "b": {"value": "x"}, "c": {"min": 1, "max": 2}})
    assert grid.expected == 4
    made = points(grid)
    assert [(point["a"], point["c"]) for point in made] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert {point["b"] for point in made} == {"x"}
    assert grid.exhausted


def test_grid_looks_into_nested_parameters() -> None:
    grid = search("grid", {"opt": {"parameters": {"lr": {"values": [1, 2]}}}})
    assert points(grid) == [{"opt": {"lr": 1}}, {"opt": {"lr": 2}}]


def test_run_cap_bounds_grid_and_random() -> None:
    assert len(points(search("grid", {"a": {"values": [1, 2, 3]}}, run_cap=2))) == 2
    assert len(points(search("random", {"a": {"min": 0.0, "max": 1.0}}, run_cap=5))) == 5


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        ({"min": 0.5, "max": 1.0}, 0.5, 1.0),
        ({"min": 1, "max": 3}, 1, 3),
        ({"min": 0.001, "max": 1.0, "distribution": "log_uniform_values"}, 0.001, 1.0),
        ({"min": -2, "max": 0, "distribution": "log_uniform"}, 0.13, 1.0),
        ({"min": 0.0, "max": 1.0, "distribution": "q_uniform", "q": 0.25}, 0.0, 1.0),
        ({"values": [7, 8]}, 7, 8),
        ({"mu": 0.0, "sigma": 0.001}, -0.1, 0.1),
    ],
)
def test_random_draws_stay_within_bounds(spec: dict[str, Any], low: float, high: float) -> None:
    drawn = points(search("random", {"x": spec}, run_cap=50))
    assert all(low <= point["x"] <= high for point in drawn)


def test_same_seed_draws_the_same() -> None:
    one, two = (search("bayes", {"x": {"min": 0.0, "max": 1.0}}, run_cap=3) for _ in range(2))
    assert points(one) == points(two)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("grid", {"x": {"min": 0.0, "max": 1.0}}), ("grid", {"x": 3}), ("grid", None)],
)
def test_senseless_configuration_is_refused(method: str, parameters: Any) -> None:
    with pytest.raises(SearchError, match="Invalid sweep config"):
        Search({"method": method, "parameters": parameters}, random.Random(0))


# --- GraphQL documents


def test_document_is_read_with_aliases_arguments_and_fragments() -> None:
    document = parse(
        """
        # a comment
        query Q($a: [String!]! = ["x"], $n: Int = 5) {
          total: runs(first: $n, names: ["a", "}"], order: ASC, deep: {k: 1.5}) @include(if: true) {
            ...F ... on Run { id }
          }
        }
        fragment F on Run { name }
        """
    )
    (operation,) = document.operations
    assert (operation.kind, operation.name) == ("query", "Q")
    assert dict(operation.defaults) == {"a": ["x"], "n": 5}
    (runs,) = operation.selection
    assert isinstance(runs, Field)
    assert (runs.key, runs.name) == ("total", "runs")
    arguments = {"first": Variable("n"), "names": ["a", "}"], "order": "ASC", "deep": {"k": 1.5}}
    assert dict(runs.arguments) == arguments
    assert list(document.fragments) == ["F"]


@pytest.mark.parametrize("text", ["query {", "walk { x }", "{ a(b: ) }", "{ a % }", "query"])
def test_broken_document_is_an_error(text: str) -> None:
    with pytest.raises(DocumentError):
        parse(text)


def test_request_without_an_operation_is_an_error() -> None:
    with pytest.raises(DocumentError):
        graphql.read_request({"query": "query A { viewer { id } }", "operationName": "B"})


def test_unknown_operation_gets_an_error_and_is_recorded(emulator: Emulator) -> None:
    reply = emulator.graphql("mutation LaunchRocket { launchRocket { success } }", {})
    assert reply.body["errors"][0]["message"] == (
        'Cannot query field "launchRocket" on type "Mutation".'
    )
    assert [event["operation"] for event in emulator.unknown()] == ["LaunchRocket"]


def test_unknown_field_is_null_and_recorded(emulator: Emulator) -> None:
    reply = emulator.graphql("query V { viewer { id shoeSize } }", {})
    assert reply.body["data"]["viewer"]["shoeSize"] is None
    assert [event["field"] for event in emulator.unknown()] == ["User.shoeSize"]


def test_unknown_path_is_recorded(emulator: Emulator) -> None:
    assert emulator.request("GET", "/nowhere").status == 404
    assert [event["path"] for event in emulator.unknown()] == ["/nowhere"]


def test_directives_leave_fields_out(emulator: Emulator) -> None:
    query = (
        "query V($no: Boolean!) { viewer { id @skip(if: true) entity username @include(if: $no) } }"
    )
    assert emulator.graphql(query, {"no": False}).body["data"]["viewer"] == {"entity": "emulator"}


def test_introspection_names_the_fields_of_a_type(emulator: Emulator) -> None:
    query = (
        '{ Probe: __type(name: "Mutation") { fields { name } } None: __type(name: "X") { name } }'
    )
    data = emulator.graphql(query, {}).body["data"]
    assert {"name": "createRunFiles"} in data["Probe"]["fields"]
    assert data["None"] is None


# --- runs


@pytest.fixture
def run() -> Run:
    """A run that has been initialised."""
    return Run("e", "p", "r", created=Now(0.0, 0.0), state=RunState.RUNNING, inits=1)


@pytest.mark.parametrize(
    ("exit_code", "preempting", "stopped", "state"),
    [
        (0, True, True, RunState.FINISHED),
        (1, False, False, RunState.FAILED),
        (1, True, False, RunState.PREEMPTED),
        (255, False, False, RunState.KILLED),
        (255, True, False, RunState.PREEMPTED),
        (15, True, True, RunState.KILLED),
    ],
)
def test_state_after_exit(
    exit_code: int, preempting: bool, stopped: bool, state: RunState, run: Run
) -> None:
    run.preempting, run.stop_requested = preempting, stopped
    assert state_after_exit(run, exit_code) is state


@pytest.mark.parametrize(
    ("preempting", "stopped", "state"),
    [
        (False, False, RunState.CRASHED),
        (True, False, RunState.PREEMPTED),
        (True, True, RunState.KILLED),
    ],
)
def test_state_after_silence(preempting: bool, stopped: bool, state: RunState, run: Run) -> None:
    run.preempting, run.stop_requested = preempting, stopped
    assert state_after_silence(run) is state


def test_post_fills_history_summary_and_output(run: Run) -> None:
    files = {
        "wandb-history.jsonl": Chunk(0, ['{"_step": 4}', ""]),
        "wandb-summary.json": Chunk(0, ['{"loss": 1}']),
        "output.log": Chunk(2, ["hello"]),
        "something-else": Chunk(0, "text"),
    }
    take_in(run, Post(files=files))
    assert (run.summary, run.log_lines, last_step(run)) == ({"loss": 1}, 3, 4)


def test_repeated_post_changes_nothing(run: Run) -> None:
    post = Post(files={"wandb-history.jsonl": Chunk(0, ['{"_step": 0}', '{"_step": 1}'])})
    take_in(run, post)
    take_in(run, post)
    assert len(run.history) == 2


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({}, True),
        ({"$and": [{"sweep": "s"}, {"state": "running"}]}, True),
        ({"$or": [{"sweep": "other"}, {"name": "r"}]}, True),
        ({"$not": {"sweep": "s"}}, False),
        ({"config.lr.value": 0.1}, True),
        ({"config.lr": 0.1}, False),
        ({"summary_metrics.loss": {"$gt": 1, "$lte": 2}}, True),
        ({"summary_metrics.missing": {"$gt": 1}}, False),
        ({"tags": {"$in": [["a"]]}}, True),
        ({"tags": "a"}, True),
        ({"state": {"$nin": ["running"]}}, False),
        ({"display_name": {"$regex": "^r$"}}, True),
        ({"state": {"$unheard": 1}}, False),
    ],
)
def test_filters(wanted: dict[str, Any], matches: bool, run: Run) -> None:
    run.sweep_id, run.summary = "s", {"loss": 2}
    run.config, run.attributes = {"lr": {"value": 0.1}}, {"tags": ["a"]}
    assert filters.matches(run, wanted) is matches


def test_runs_are_ordered(run: Run) -> None:
    other = Run("e", "p", "q", created=Now(1.0, 1.0), inits=1, summary={"loss": 1})
    run.summary = {"loss": 2}
    hidden = Run("e", "p", "h", created=Now(2.0, 2.0))
    runs = [run, other, hidden]
    assert filters.select(runs, None, "-created_at") == [other, run]
    assert filters.select(runs, "{}", "+summary_metrics.loss") == [other, run]


def test_opaque_ids_can_be_read_back() -> None:
    assert decode_id(encode_id("Run", "r", "p", "e")) == ["r", "p", "e"]
    assert decode_id("not base64!") is None


# --- the process


def test_emulator_ends_cleanly_on_a_signal(start: Callable[..., Emulator]) -> None:
    emulator = start()
    assert emulator.request("GET", "/_emulator/health").body == {"ok": True}
    assert emulator.stop() == 0


def test_history_is_numbered_and_written_to_a_file(
    start: Callable[..., Emulator], tmp_path: Path
) -> None:
    emulator = start()
    emulator.create_sweep({"method": "random", "parameters": {"x": {"value": 1}}})
    events = emulator.history()
    assert [event["n"] for event in events] == list(range(len(events)))
    assert emulator.history(after=0) == events[1:]
    (file,) = tmp_path.rglob("emulator.jsonl")
    assert len(file.read_text().splitlines()) == len(events)


@pytest.mark.parametrize("flags", [["--fault", "kind=nonsense"], ["--port", "x"], ["--nonsense"]])
def test_wrong_flags_are_usage_errors(flags: list[str]) -> None:
    command = [sys.executable, "-m", "coordinator.emulator", *flags]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"Error" in done.stderr
