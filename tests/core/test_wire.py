"""The documents of wandb that we read or change; whatever else comes must pass untouched.

`tests/data/wire-VERSION.json` holds what a real `wandb agent` of that version sent for one run, and
what the emulator answered.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core import wire
from coordinator.core.model import CommandKind, SweepState
from coordinator.core.wire import Orders, Query, TrainCommand

DATA = Path(__file__).parents[1] / "data"
VERSIONS = ["0.16.6", "0.24.0", "0.31.0"]
SHIM = ["python", "-I", "-S", "shim.py"]
AGENT_TEMPLATE = ["${env}", "${interpreter}", "${program}", "${args}"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=12,
)


def recorded(version: str, operation: str) -> list[tuple[bytes, bytes]]:
    """Requests for `operation` that a real agent sent, with their answers."""
    pairs = json.loads((DATA / f"wire-{version}.json").read_text())
    found = [
        (pair["request"].encode(), pair["answer"].encode())
        for pair in pairs
        if operation in pair["request"]
    ]
    assert found, f"wandb {version} sent no {operation}"
    return found


def query(body: bytes) -> Query:
    found = wire.parse_query(body)
    assert found is not None
    return found


def request(text: str, variables: object = None, **more: object) -> bytes:
    return json.dumps({"query": text, "variables": variables, **more}).encode()


def sweep_answer(config: object, state: str = "RUNNING") -> bytes:
    text = config if isinstance(config, str) else yaml.safe_dump(config)
    sweep = {"id": "U3dlZXA=", "name": "s1", "state": state, "config": text, "runs": {"edges": []}}
    return json.dumps({"data": {"project": {"sweep": sweep}}}).encode()


def heartbeat(commands: object) -> bytes:
    text = commands if isinstance(commands, str) else json.dumps(commands)
    beat = {"agent": {"id": "QWdlbnQ="}, "commands": text}
    return json.dumps({"data": {"agentHeartbeat": beat}}).encode()


def orders(commands: object) -> Orders:
    found = wire.parse_orders(heartbeat(commands))
    assert found is not None
    return found


# --- what real agents send ------------------------------------------------------------------------
@pytest.mark.parametrize("version", VERSIONS)
def test_the_question_for_the_sweep_of_a_real_agent_is_recognised(version: str) -> None:
    [(body, answer)] = recorded(version, "SweepWithRuns")
    assert wire.is_sweep_query(query(body))
    assert not wire.is_heartbeat(query(body))
    assert not wire.is_registration(query(body))
    assert wire.sweep_facts(answer) is SweepState.RUNNING


@pytest.mark.parametrize("version", VERSIONS)
def test_the_registration_of_a_real_agent_is_recognised(version: str) -> None:
    [(body, answer)] = recorded(version, "CreateAgent")
    assert wire.is_registration(query(body))
    assert not wire.is_heartbeat(query(body))
    name = wire.agent_id(answer)
    assert name is not None
    assert name == query(recorded(version, "Heartbeat")[0][0]).variables["id"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_heartbeat_of_a_real_agent_tells_its_runs_and_its_answer_tells_the_command(
    version: str,
) -> None:
    (idle, given), (busy, nothing), *_ = recorded(version, "mutation Heartbeat")
    told = wire.parse_orders(given)
    assert told is not None
    [command] = told.train
    assert wire.is_heartbeat(query(idle))
    assert wire.running_runs(query(idle)) == ()
    assert wire.is_heartbeat(query(busy))
    assert wire.running_runs(query(busy)) == (command.run_id,)
    assert (command.kind, command.program) == (CommandKind.RUN, "t.py")
    assert command.args == {"n": {"value": 1}}
    assert wire.parse_orders(nothing) == Orders((), (), exit=False, other=())


@pytest.mark.parametrize("version", VERSIONS)
def test_of_a_real_sweep_document_only_the_command_is_changed(version: str) -> None:
    [(_, before)] = recorded(version, "SweepWithRuns")
    after = wire.put_in_front(before, SHIM)
    assert after is not None
    old, new = (json.loads(body)["data"]["project"]["sweep"] for body in (before, after))
    old_config, new_config = (yaml.safe_load(sweep.pop("config")) for sweep in (old, new))
    assert old == new
    assert new_config.pop("command") == [*SHIM, *AGENT_TEMPLATE]
    assert old_config == new_config


def test_other_documents_of_a_real_agent_are_none_of_our_business() -> None:
    for body, _ in recorded("0.31.0", "query Viewer"):
        viewer = query(body)
        assert not wire.is_sweep_query(viewer)
        assert not wire.is_registration(viewer)
        assert not wire.is_heartbeat(viewer)


# --- reading requests -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("mutation Heartbeat($id: ID!) { a }", "Heartbeat"),
        ("\n    mutation Heartbeat(\n  $id: ID!\n) {\n a }", "Heartbeat"),
        ("query Viewer{viewer{id}}", "Viewer"),
        ("query { viewer { id } }", "{"),
        ("{ viewer { id } }", ""),
        ("subscription Heartbeat { a }", ""),
        ("", ""),
        ("query", ""),
    ],
)
def test_the_operation_is_the_word_after_query_or_mutation(text: str, operation: str) -> None:
    assert query(request(text)).operation == operation


def test_the_name_that_is_sent_beside_a_document_with_several_operations_counts() -> None:
    both = "query A { a } mutation Heartbeat { b }"
    assert query(request(both, operationName="Heartbeat")).operation == "Heartbeat"
    assert query(request(both, operationName=None)).operation == "A"
    assert query(request(both, operationName="")).operation == "A"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"query"', b"\xff\xfe", b'{"query": 1}', b'{"id": "x"}']
)
def test_a_body_that_is_not_a_graphql_request_is_not_recognized(body: bytes) -> None:
    assert wire.parse_query(body) is None


def test_a_heartbeat_without_run_states_is_none_of_an_agent() -> None:
    assert not wire.is_heartbeat(query(request("mutation Heartbeat { a }", {"id": "x"})))


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        ("{}", ()),
        ('{"a": true}', ("a",)),
        ('{"a": true, "b": false, "c": true}', ("a", "c")),
        ({"a": True}, ("a",)),
        ("", ()),
        ("[1]", ()),
        ("null", ()),
        (None, ()),
        (7, ()),
    ],
)
def test_the_runs_of_a_heartbeat_are_those_that_live(state: object, runs: tuple[str]) -> None:
    assert wire.running_runs(Query("Heartbeat", {"runState": state})) == runs


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_body_breaks_the_reading_of_requests(body: bytes) -> None:
    found = wire.parse_query(body)
    if found is not None:
        wire.running_runs(found)
        wire.is_heartbeat(found)


# --- the sweep document ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("config", "command"),
    [
        pytest.param({}, AGENT_TEMPLATE, id="absent"),
        pytest.param({"command": []}, AGENT_TEMPLATE, id="empty list"),
        pytest.param({"command": None}, AGENT_TEMPLATE, id="null"),
        pytest.param({"command": ""}, AGENT_TEMPLATE, id="empty text"),
        pytest.param({"command": "python t.py"}, AGENT_TEMPLATE, id="text, which agents ignore"),
        pytest.param({"command": ["sh", "-c", "a; b"]}, ["sh", "-c", "a; b"], id="list"),
        pytest.param({"command": ["a", 1, 0.5]}, ["a", 1, 0.5], id="numbers"),
        pytest.param(
            {"command": ["${env}", "torchrun", "${program}", "${args_no_hyphens}"]},
            ["${env}", "torchrun", "${program}", "${args_no_hyphens}"],
            id="macros",
        ),
    ],
)
def test_the_shim_is_put_in_front_of_what_the_agent_would_have_run(
    config: dict[str, Any], command: list[Any]
) -> None:
    changed = wire.put_in_front(sweep_answer({"program": "t.py", **config}), SHIM)
    assert changed is not None
    sweep = json.loads(changed)["data"]["project"]["sweep"]
    assert yaml.safe_load(sweep["config"])["command"] == [*SHIM, *command]


def test_a_configuration_in_json_is_yaml_too_and_keeps_its_order_and_every_character() -> None:
    config = '{"program": "t.py", "name": "täglich ☃", "method": "grid", "description": "a: b # c"}'
    changed = wire.put_in_front(sweep_answer(config), SHIM)
    assert changed is not None
    text = json.loads(changed)["data"]["project"]["sweep"]["config"]
    parsed = yaml.safe_load(text)
    assert list(parsed) == ["program", "name", "method", "description", "command"]
    assert parsed | {"command": 0} == json.loads(config) | {"command": 0}


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda key: key != "command"),
        st.recursive(
            scalars,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=6), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=5,
    )
)
def test_no_value_of_a_sweep_is_changed_by_the_rewriting(config: dict[str, Any]) -> None:
    changed = wire.put_in_front(sweep_answer(config), SHIM)
    assert changed is not None
    after = yaml.safe_load(json.loads(changed)["data"]["project"]["sweep"]["config"])
    assert after.pop("command") == [*SHIM, *AGENT_TEMPLATE]
    assert after == config


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b'{"data": null}',
        b'{"data": {"project": null}}',
        b'{"data": {"project": {"sweep": null}}}',
        b'{"data": {"project": {"sweep": {"config": null}}}}',
        b'{"data": {"project": {"sweep": {"config": 7}}}}',
        b'{"errors": [{"message": "no"}], "data": null}',
        sweep_answer("- a\n- b"),
        sweep_answer(""),
        sweep_answer("a: [unclosed"),
        sweep_answer("!!python/object/apply:os.system [id]"),
        sweep_answer("a: \x00"),
    ],
)
def test_a_sweep_document_that_we_do_not_know_is_left_alone(body: bytes) -> None:
    assert wire.put_in_front(body, SHIM) is None


@settings(deadline=None, max_examples=40)
@given(json_values)
def test_no_answer_breaks_a_reader(value: object) -> None:
    for body in (
        json.dumps(value).encode(),
        json.dumps({"data": value}).encode(),
        json.dumps({"data": {"project": value}}).encode(),
        json.dumps({"data": {"project": {"sweep": value, "run": value}}}).encode(),
        json.dumps({"data": {"createAgent": value}}).encode(),
        json.dumps({"data": {"agentHeartbeat": value}}).encode(),
        json.dumps({"errors": value}).encode(),
        heartbeat(value),
        heartbeat([value]),
    ):
        wire.put_in_front(body, SHIM)
        wire.sweep_facts(body)
        wire.agent_id(body)
        wire.parse_orders(body)
        wire.run_state(body)
        assert "\n" not in wire.error_text(body)


# --- orders ---------------------------------------------------------------------------------------
def test_a_hidden_argument_of_a_resume_is_kept_from_the_training_and_nothing_else_is() -> None:
    sent = {
        "type": "resume",
        "run_id": "r1",
        "args": {"_wandb": {"value": {"t": 1}}, "lr": {"value": 0.1}},
        "program": "t.py",
        "run_queue_item_id": "q1",
    }
    [command] = orders([sent]).train
    assert command.kind is CommandKind.RESUME
    assert command.args == {"lr": {"value": 0.1}}
    assert command.raw == {**sent, "args": {"lr": {"value": 0.1}}}


def test_orders_are_sorted_by_what_they_ask_in_the_order_of_arrival() -> None:
    told = orders(
        [
            {"type": "stop", "run_id": "r1"},
            {"type": "run", "run_id": "r2", "args": {}, "program": "a.py"},
            {"type": "resume", "run_id": "r3", "args": {}},
            {"type": "stop", "run_id": "r4"},
            {"type": "exit"},
        ]
    )
    assert [command.run_id for command in told.train] == ["r2", "r3"]
    assert [command.program for command in told.train] == ["a.py", ""]
    assert told.stop == ("r1", "r4")
    assert told.exit


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "dance"},
        {"type": "run", "args": {}},
        {"type": "run", "run_id": 7, "args": {}},
        {"type": "run", "run_id": "r1"},
        {"type": "run", "run_id": "r1", "args": []},
        {"type": "stop"},
        {"run_id": "r1"},
        {},
    ],
)
def test_a_command_of_a_newer_server_is_kept_beside_those_that_we_know(odd: dict[str, Any]) -> None:
    told = orders([odd, {"type": "run", "run_id": "r2", "args": {}}])
    assert told.other == (odd,)
    assert [command.run_id for command in told.train] == ["r2"]
    assert not told.exit


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>502</html>",
        b"{}",
        b'{"data": {"agentHeartbeat": null}}',
        b'{"data": {"agentHeartbeat": {"commands": null}}}',
        heartbeat("not json"),
        heartbeat({"type": "exit"}),
        heartbeat("null"),
    ],
)
def test_an_answer_to_another_request_gives_no_commands(body: bytes) -> None:
    assert wire.parse_orders(body) is None


def test_our_own_answer_to_a_heartbeat_reads_like_the_servers() -> None:
    raw = {"type": "run", "run_id": "r1", "args": {"n": {"value": 1}}, "program": "t.py"}
    body = wire.heartbeat_answer("QWdlbnQ=", [raw])
    expected = TrainCommand(CommandKind.RUN, "r1", "t.py", {"n": {"value": 1}}, raw)
    assert wire.parse_orders(body) == Orders((expected,), (), exit=False, other=())
    assert json.loads(body)["data"]["agentHeartbeat"]["agent"] == {"id": "QWdlbnQ="}


# --- errors and questions -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"errors": [{"message": "Sweep x is not running"}]}', "Sweep x is not running"),
        (b'{"errors": [{"message": "a"}, {"message": "b"}]}', "a; b"),
        (b'{"errors": ["plain"]}', "plain"),
        (b'{"error": "api key invalid"}', "api key invalid"),
        (b"<html>\n  <b>502</b>\n</html>", "<html> <b>502</b> </html>"),
        (b"", ""),
        (b"{}", ""),
        (b"[1]", ""),
        (b'{"errors": [{"message": "two\\nlines"}]}', "two lines"),
    ],
)
def test_the_words_of_a_refusal_are_found_and_put_on_one_line(body: bytes, words: str) -> None:
    assert wire.error_text(body) == words


def test_the_state_of_a_run_is_shown_in_upper_case_and_none_for_an_unknown_run() -> None:
    assert wire.run_state(b'{"data": {"project": {"run": {"state": "preempted"}}}}') == "PREEMPTED"
    assert wire.run_state(b'{"data": {"project": {"run": null}}}') is None
    assert wire.run_state(b'{"data": {"project": null}}') is None


def test_a_question_of_our_own_is_a_request_that_we_would_recognise() -> None:
    body = wire.question(wire.SWEEP_STATE, {"entity": "e", "project": "p", "sweep": "s"})
    assert query(body) == Query("SweepState", {"entity": "e", "project": "p", "sweep": "s"})
