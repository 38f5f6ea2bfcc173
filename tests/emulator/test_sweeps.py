"""The life of a sweep and its queue, as agents see it, without the start-up time of real agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coordinator.emulator.records import encode_id
from tests.support.emulator import Emulator, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

GRID = {"program": "t.py", "method": "grid", "parameters": {"lr": {"values": [0.1, 0.2]}}}

_INIT = """mutation UpsertBucket($name: String, $host: String, $sweep: String, $project: String) {
  upsertBucket(input: {name: $name, modelName: $project, host: $host, sweep: $sweep}) {
    bucket { id name } inserted } }"""
_RESUME = """query RunResumeStatus($name: String!) { model(name: "tests", entityName: "emulator") {
  bucket(name: $name, missingOk: true) { historyLineCount historyTail config } } }"""


def claim(emulator: Emulator, path: str, host: str = "node") -> tuple[str, dict[str, Any]]:
    """Register an agent and let it ask once; return its ID and its only command."""
    agent = emulator.create_agent(path, host)
    (command,) = emulator.heartbeat(agent)
    return agent, command


def initialise(emulator: Emulator, run_id: str) -> dict[str, Any]:
    """Do what `wandb.init()` does."""
    variables = {"name": run_id, "host": "node", "project": "tests"}
    answer: dict[str, Any] = emulator.graphql(_INIT, variables).body["data"]["upsertBucket"]
    return answer


def finish(
    emulator: Emulator, run_id: str, exit_code: int = 0, *, preempting: bool = False
) -> None:
    """Start a run and end it."""
    initialise(emulator, run_id)
    if preempting:
        emulator.file_stream(f"emulator/tests/{run_id}", preempting=True)
    emulator.file_stream(f"emulator/tests/{run_id}", complete=True, exitcode=exit_code)


def test_sweep_is_finished_once_its_grid_is_made_and_nothing_lives(emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    first, one = claim(emulator, path)
    second, two = claim(emulator, path)
    idle = emulator.create_agent(path)
    assert emulator.heartbeat(idle) == []
    finish(emulator, one["run_id"])
    assert emulator.heartbeat(idle) == []
    finish(emulator, two["run_id"], 3)
    assert emulator.sweep(path)["state"] == "FINISHED"
    assert emulator.heartbeat(idle) == [{"type": "exit"}]
    assert emulator.heartbeat(first) == emulator.heartbeat(second) == [{"type": "exit"}]


def test_command_carries_arguments_and_program(emulator: Emulator) -> None:
    _, command = claim(emulator, emulator.create_sweep(GRID))
    assert command["type"] == "run"
    assert command["args"] == {"lr": {"value": 0.1}}
    assert command["program"] == "t.py"
    assert len(command["run_id"]) == 8


def test_run_cap_bounds_a_random_sweep(emulator: Emulator) -> None:
    config = {"method": "random", "run_cap": 1, "parameters": {"lr": {"min": 0.0, "max": 1.0}}}
    path = emulator.create_sweep(config)
    _, command = claim(emulator, path)
    assert emulator.heartbeat(emulator.create_agent(path)) == []
    finish(emulator, command["run_id"])
    assert emulator.sweep(path)["state"] == "FINISHED"


def test_preempted_run_is_handed_out_before_new_configurations(emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    agent, command = claim(emulator, path)
    finish(emulator, command["run_id"], 1, preempting=True)
    assert emulator.run(command["run_id"])["state"] == "preempted"
    (again,) = emulator.heartbeat(agent)
    assert (again["type"], again["run_id"]) == ("resume", command["run_id"])
    assert "_wandb" in again["args"]
    (new,) = emulator.heartbeat(agent)
    assert (new["type"], new["args"]) == ("run", {"lr": {"value": 0.2}})


@pytest.mark.parametrize(("exit_code", "preempting"), [(1, False), (255, False), (0, True)])
def test_other_ends_are_never_queued(exit_code: int, preempting: bool, emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    _, command = claim(emulator, path)
    finish(emulator, command["run_id"], exit_code, preempting=preempting)
    assert emulator.sweep(path)["queue"] == []


def test_hidden_argument_can_be_switched_off(emulator: Emulator) -> None:
    emulator.faults(wandb_arg=False)
    agent, command = claim(emulator, emulator.create_sweep(GRID))
    finish(emulator, command["run_id"], 1, preempting=True)
    assert emulator.heartbeat(agent)[0]["args"] == {"lr": {"value": 0.1}}


@pytest.mark.parametrize("config", ["a: [", "method: grid", "just text"])
def test_senseless_sweep_is_refused(config: str, emulator: Emulator) -> None:
    query = "mutation S($c: String) { upsertSweep(input: {config: $c}) { sweep { name } } }"
    assert emulator.graphql(query, {"c": config}).status == 400


def test_updated_sweep_searches_its_new_configuration(emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    query = """mutation S($c: String, $id: ID) {
      upsertSweep(input: {config: $c, id: $id}) { sweep { config } } }"""
    opaque = encode_id("Sweep", path.rpartition("/")[2], "tests", "emulator")
    config = "{method: grid, parameters: {x: {value: 7}}}"
    assert emulator.graphql(query, {"c": config, "id": opaque}).status == 200
    assert claim(emulator, path)[1]["args"] == {"x": {"value": 7}}


def test_paused_sweep_hands_out_nothing_and_lets_agents_in(emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    emulator.set_sweep_state(path, "PAUSED")
    assert emulator.heartbeat(emulator.create_agent(path)) == []


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED"])
def test_ended_sweep_refuses_new_agents(state: str, emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    emulator.set_sweep_state(path, state)
    query = (
        'mutation CreateAgent { createAgent(input: {host: "h", projectName: "tests", sweep: "%s"})'
    )
    reply = emulator.graphql(query % path.rpartition("/")[2] + " { agent { id } } }", {})
    assert reply.status == 400
    assert reply.body["errors"][0]["message"] == f"Sweep {path} is not running"


def test_stop_lets_busy_agents_be_and_cancel_does_not(emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    agent, command = claim(emulator, path)
    initialise(emulator, command["run_id"])
    emulator.set_sweep_state(path, "FINISHED")
    assert emulator.heartbeat(agent, command["run_id"]) == []
    emulator.set_sweep_state(path, "CANCELED")
    assert emulator.heartbeat(agent, command["run_id"]) == [{"type": "exit"}]


def test_run_of_a_canceled_sweep_ends_as_killed(hasty: Emulator) -> None:
    path = hasty.create_sweep(GRID)
    _, command = claim(hasty, path)
    initialise(hasty, command["run_id"])
    hasty.set_sweep_state(path, "CANCELED")
    wait_until("run ends", lambda: hasty.run(command["run_id"])["state"] == "killed")


def test_stopped_run_is_told_to_its_agent_and_to_its_sdk(emulator: Emulator) -> None:
    path = emulator.create_sweep(GRID)
    agent, command = claim(emulator, path)
    run_id = command["run_id"]
    initialise(emulator, run_id)
    emulator.stop_run(run_id)
    assert emulator.heartbeat(agent, run_id) == [{"type": "stop", "run_id": run_id}]
    assert emulator.file_stream(f"emulator/tests/{run_id}").body["stopped"] is True
    emulator.file_stream(f"emulator/tests/{run_id}", complete=True, exitcode=15)
    assert emulator.run(run_id)["state"] == "killed"


def test_early_finish_strands_the_queue_until_a_person_resumes(emulator: Emulator) -> None:
    emulator.faults(early_finish=True)
    path = emulator.create_sweep(GRID)
    agent, _ = claim(emulator, path)
    _, last = claim(emulator, path)
    assert emulator.sweep(path)["state"] == "FINISHED"
    finish(emulator, last["run_id"], 1, preempting=True)
    assert emulator.heartbeat(agent) == [{"type": "exit"}]
    emulator.set_sweep_state(path, "RUNNING")
    assert emulator.heartbeat(agent)[0]["run_id"] == last["run_id"]
    assert emulator.sweep(path)["state"] == "FINISHED"


def test_pending_sweep_runs_with_the_first_heartbeat(start: Callable[..., Emulator]) -> None:
    emulator = start("--pending")
    path = emulator.create_sweep(GRID)
    assert emulator.sweep(path)["state"] == "PENDING"
    claim(emulator, path)
    assert emulator.sweep(path)["state"] == "RUNNING"


def test_silent_run_crashes_and_marked_one_is_queued(hasty: Emulator) -> None:
    path = hasty.create_sweep(GRID)
    _, one = claim(hasty, path)
    _, two = claim(hasty, path)
    for command in (one, two):
        initialise(hasty, command["run_id"])
    hasty.file_stream(f"emulator/tests/{two['run_id']}", preempting=True)
    wait_until("silence ends", lambda: hasty.run(one["run_id"])["state"] == "crashed")
    wait_until("silence ends", lambda: hasty.run(two["run_id"])["state"] == "preempted")
    assert [entry["run"] for entry in hasty.sweep(path)["queue"]] == [two["run_id"]]


def test_marked_run_is_shown_as_preempting_while_it_lives(emulator: Emulator) -> None:
    _, command = claim(emulator, emulator.create_sweep(GRID))
    initialise(emulator, command["run_id"])
    emulator.file_stream(f"emulator/tests/{command['run_id']}", preempting=True)
    assert emulator.run(command["run_id"])["shown_state"] == "preempting"


def test_unused_claim_gives_its_configuration_back(hasty: Emulator) -> None:
    path = hasty.create_sweep(GRID)
    agent, lost = claim(hasty, path)
    wait_until("claim lapses", lambda: hasty.run(lost["run_id"])["state"] == "abandoned")
    (again,) = hasty.heartbeat(agent)
    assert again["args"] == lost["args"]
    assert again["run_id"] != lost["run_id"]


def test_unused_claim_of_a_queued_run_goes_back_to_the_queue(hasty: Emulator) -> None:
    agent, command = claim(hasty, hasty.create_sweep(GRID))
    finish(hasty, command["run_id"], 1, preempting=True)
    assert hasty.heartbeat(agent)[0]["type"] == "resume"
    wait_until("claim lapses", lambda: hasty.run(command["run_id"])["state"] == "preempted")
    assert hasty.heartbeat(agent)[0]["run_id"] == command["run_id"]


def test_unused_claim_of_a_run_that_finished_while_it_was_queued_does_not_come_back(
    hasty: Emulator,
) -> None:
    agent, command = claim(hasty, hasty.create_sweep(GRID))
    initialise(hasty, command["run_id"])
    hasty.file_stream(f"emulator/tests/{command['run_id']}", preempting=True)
    hasty.silence_run(command["run_id"])
    finish(hasty, command["run_id"], 0)
    assert hasty.heartbeat(agent)[0]["run_id"] == command["run_id"]
    wait_until("claim lapses", lambda: hasty.run(command["run_id"])["state"] == "finished")
    assert hasty.heartbeat(agent)[0]["run_id"] != command["run_id"]


def test_claim_stays_for_an_hour_unless_scaled(emulator: Emulator) -> None:
    _, command = claim(emulator, emulator.create_sweep(GRID))
    assert emulator.run(command["run_id"])["state"] == "reserved"
    reply = emulator.graphql(_RESUME, {"name": command["run_id"]})
    assert reply.body["data"]["model"] is None or reply.body["data"]["model"]["bucket"] is None


def test_late_post_brings_an_ended_run_back_to_life(emulator: Emulator) -> None:
    _, command = claim(emulator, emulator.create_sweep(GRID))
    finish(emulator, command["run_id"], 1)
    emulator.file_stream(f"emulator/tests/{command['run_id']}", uploaded=["x"])
    assert emulator.run(command["run_id"])["state"] == "running"


def test_resuming_sdk_learns_where_history_ended(emulator: Emulator) -> None:
    _, command = claim(emulator, emulator.create_sweep(GRID))
    run_id = command["run_id"]
    assert initialise(emulator, run_id)["inserted"] is True
    rows = ['{"_step":0,"loss":1}', '{"_step":1,"loss":0.5}']
    files = {"wandb-history.jsonl": {"offset": 0, "content": rows}}
    emulator.file_stream(f"emulator/tests/{run_id}", files=files)
    bucket = emulator.graphql(_RESUME, {"name": run_id}).body["data"]["model"]["bucket"]
    assert bucket["historyLineCount"] == 2
    assert bucket["historyTail"] == '["{\\"_step\\":1,\\"loss\\":0.5}"]'
    assert emulator.run(run_id)["last_step"] == 1


def test_process_that_does_not_resume_writes_over_the_old_rows(emulator: Emulator) -> None:
    _, command = claim(emulator, emulator.create_sweep(GRID))
    run_id = command["run_id"]
    initialise(emulator, run_id)
    for rows in (['{"_step":0}', '{"_step":1}'], ['{"_step":0}']):
        files = {"wandb-history.jsonl": {"offset": 0, "content": rows}}
        emulator.file_stream(f"emulator/tests/{run_id}", files=files)
    run = emulator.run(run_id)
    assert (run["rows"], run["rows_received"], run["last_step"]) == (1, 3, 0)


# --- the racy queue


def racy_sweep(emulator: Emulator) -> tuple[str, str]:
    """A sweep with one run in its queue."""
    path = emulator.create_sweep(GRID)
    _, command = claim(emulator, path)
    finish(emulator, command["run_id"], 1, preempting=True)
    return path, command["run_id"]


def test_racy_queue_hands_one_run_to_every_agent_once(emulator: Emulator) -> None:
    emulator.faults(racy_window=60.0)
    path, run_id = racy_sweep(emulator)
    agents = [emulator.create_agent(path, host) for host in ("a", "a", "b")]
    given = [emulator.heartbeat(agent)[0]["run_id"] for agent in agents]
    assert given == [run_id] * 3
    assert emulator.heartbeat(agents[0])[0]["run_id"] != run_id
    assert (emulator.run(run_id)["hand_outs"], emulator.run(run_id)["duplicates"]) == (4, 2)
    flags = [event["duplicate"] for event in emulator.events("command", run=run_id)]
    assert flags == [False, False, True, True]


def test_racy_queue_hands_out_a_run_that_has_finished_meanwhile(emulator: Emulator) -> None:
    emulator.faults(racy_window=60.0)
    path, run_id = racy_sweep(emulator)
    claim(emulator, path)
    finish(emulator, run_id)
    _, stale = claim(emulator, path)
    assert (stale["type"], stale["run_id"]) == ("resume", run_id)
    assert emulator.run(run_id)["state"] == "finished"


def test_race_ends_with_its_window(emulator: Emulator) -> None:
    emulator.faults(racy_window=0.2)
    path, run_id = racy_sweep(emulator)
    claim(emulator, path)
    wait_until("race is over", lambda: claim(emulator, path)[1]["run_id"] != run_id)


def test_racy_new_hands_out_a_new_run_twice(emulator: Emulator) -> None:
    emulator.faults(racy_window=60.0, racy_new=True)
    path = emulator.create_sweep(GRID)
    runs = [claim(emulator, path)[1]["run_id"] for _ in range(4)]
    assert runs[0] == runs[1] != runs[2] == runs[3]
    assert sum(event["duplicate"] for event in emulator.events("command")) == 2


def test_without_a_race_no_run_is_handed_out_twice(emulator: Emulator) -> None:
    path, run_id = racy_sweep(emulator)
    runs = [claim(emulator, path)[1]["run_id"] for _ in range(2)]
    assert len(set(runs)) == 2
    assert runs[0] == run_id
    assert not any(event["duplicate"] for event in emulator.events("command"))


def test_a_hundred_agents_get_a_hundred_runs(emulator: Emulator) -> None:
    values = list(range(100))
    path = emulator.create_sweep({"method": "grid", "parameters": {"x": {"values": values}}})
    commands = [claim(emulator, path, f"node{n}")[1] for n in values]
    assert len({command["run_id"] for command in commands}) == 100
    assert sorted(command["args"]["x"]["value"] for command in commands) == values
