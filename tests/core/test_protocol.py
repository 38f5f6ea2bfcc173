"""Messages and records keep their shape: the stored examples of version 1 must load for ever.

`tests/data/protocol-1.json` has an example of each message on the two sockets, by class name;
`runs-1.jsonl` and `undelivered-1.json` are files of a state directory.
"""

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core import breaker, cluster, protocol, shim_protocol
from coordinator.core.model import DownMode, NodeState, Outcome
from coordinator.core.protocol import (
    PROTOCOL_VERSION,
    Answer,
    RequestUnion,
    RunView,
    StatusView,
)
from coordinator.core.shim_protocol import Go, ShimSays, ShimTold

DATA = Path(__file__).parents[1] / "data"
EXAMPLES: dict[str, list[dict[str, Any]]] = json.loads((DATA / "protocol-1.json").read_text())
Message = type[msgspec.Struct]
REQUESTS: list[Message] = list(get_args(RequestUnion))
ANSWERS: list[Message] = list(get_args(Answer))
SHIM: list[Message] = [*get_args(ShimSays), *get_args(ShimTold)]
VIEWS: list[Message] = [
    protocol.SlotView,
    protocol.RedisView,
    protocol.UpstreamView,
    breaker.BreakerView,
    protocol.AgentStartView,
    protocol.StatusView,
    protocol.RunView,
    protocol.LeaseView,
    cluster.LeaseDetailView,
    cluster.NodeView,
    protocol.LogLine,
]
ALL = [*REQUESTS, *ANSWERS, *SHIM, *VIEWS]
STORED = [
    pytest.param(message, example, id=f"{message.__name__}{number}")
    for message in ALL
    for number, example in enumerate(EXAMPLES.get(message.__name__, []))
]

json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type that JSON can carry."""
    simple: dict[Any, st.SearchStrategy[Any]] = {
        Any: json_data,
        float: st.floats(allow_nan=False, allow_infinity=False),
        int: st.integers(-(2**63), 2**63 - 1),
    }
    if kind in simple:
        return simple[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return messages(kind)
    if args := get_args(kind):
        return compound(get_origin(kind), args)
    return st.from_type(kind)


def compound(origin: Any, args: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Values of a type that has parameters."""
    if origin is Literal:
        return st.sampled_from(args)
    if origin is list:
        return st.lists(values(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    return st.one_of([values(arg) for arg in args])


def messages(message: Message) -> st.SearchStrategy[msgspec.Struct]:
    fields = msgspec.structs.fields(message)
    return st.builds(message, **{field.name: values(field.type) for field in fields})


def encoded(example: dict[str, Any]) -> bytes:
    return json.dumps(example).encode()


# --- stored forms ---------------------------------------------------------------------------------
def test_every_message_of_the_protocol_has_a_stored_example_and_no_other_is_stored() -> None:
    assert set(EXAMPLES) == {message.__name__ for message in ALL}
    assert all(EXAMPLES.values())


def test_no_message_is_missing_from_the_unions() -> None:
    tagged = {
        item
        for module in (protocol, shim_protocol, cluster)
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, msgspec.Struct)
    }
    assert tagged - {protocol.Request} == set(ALL)


@pytest.mark.parametrize(("message", "example"), STORED)
def test_a_stored_example_still_loads_and_loses_nothing(
    message: Message, example: dict[str, Any]
) -> None:
    loaded = msgspec.json.decode(encoded(example), type=message)
    again = json.loads(msgspec.json.encode(loaded))
    assert {key: again[key] for key in example} == example


@pytest.mark.parametrize("message", ALL, ids=lambda message: message.__name__)
def test_a_message_that_gets_a_field_gets_an_example_with_it_beside_the_old_ones(
    message: Message,
) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(message)}
    tag = message.__struct_config__.tag_field
    forms = [set(example) for example in EXAMPLES[message.__name__]]
    assert fields | ({tag} if tag else set()) in forms


@pytest.mark.parametrize(
    ("union", "members"),
    [(RequestUnion, REQUESTS), (Answer, ANSWERS), (ShimSays, SHIM[:6]), (ShimTold, SHIM[6:])],
)
def test_a_message_is_identified_by_its_tag_alone(union: Any, members: list[Message]) -> None:
    for message in members:
        for example in EXAMPLES[message.__name__]:
            assert type(msgspec.json.decode(encoded(example), type=union)) is message


def test_a_history_that_an_older_daemon_wrote_still_loads() -> None:
    lines = (DATA / "runs-1.jsonl").read_bytes().splitlines()
    views = [msgspec.json.decode(line, type=RunView) for line in lines]
    assert {view.outcome for view in views} == set(Outcome)


# --- every value ----------------------------------------------------------------------------------
@pytest.mark.parametrize("message", ALL, ids=lambda message: message.__name__)
@settings(deadline=None, max_examples=15)
@given(st.data())
def test_what_is_sent_is_what_arrives_on_one_line(message: Message, data: st.DataObject) -> None:
    sent = data.draw(messages(message))
    line = msgspec.json.encode(sent)
    assert b"\n" not in line, "messages are lines"
    assert msgspec.json.decode(line, type=message) == sent


# --- what is unknown ------------------------------------------------------------------------------
@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: message.__name__)
def test_a_request_with_an_unknown_field_is_refused(message: Message) -> None:
    example = EXAMPLES[message.__name__][0] | {"tarrget": "8"}
    with pytest.raises(msgspec.ValidationError, match="tarrget"):
        msgspec.json.decode(encoded(example), type=RequestUnion)


@pytest.mark.parametrize("message", [*ANSWERS, *SHIM, *VIEWS], ids=lambda m: m.__name__)
def test_a_field_of_a_newer_version_is_passed_over_in_answers(message: Message) -> None:
    example = EXAMPLES[message.__name__][0]
    newer = example | {"field_of_a_newer_version": 1}
    assert msgspec.json.decode(encoded(newer), type=message) == msgspec.json.decode(
        encoded(example), type=message
    )


@pytest.mark.parametrize("body", [b"{}", b'{"do": "dance"}', b'{"target": "8"}', b"[]", b"null"])
def test_a_request_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=RequestUnion)


@pytest.mark.parametrize(
    "body",
    [
        b'{"do": "scale"}',
        b'{"do": "scale", "target": 8}',
        b'{"do": "scale", "target": "8", "down": "gently"}',
        b'{"do": "signal", "signal": 15, "target": "all"}',
        b'{"do": "preempt", "grace_seconds": "30"}',
        b'{"do": "runs", "limit": "all"}',
    ],
)
def test_a_request_with_a_value_of_another_type_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=RequestUnion)


# --- the shim, which has no msgspec ---------------------------------------------------------------
def test_a_variable_can_be_removed_from_the_environment_of_a_training() -> None:
    line = msgspec.json.encode(Go({"A": "1", "B": None}, 10.0, "/x"))
    assert json.loads(line)["env"] == {"A": "1", "B": None}


def test_the_version_of_the_protocol_is_shown_by_status() -> None:
    [field] = [f for f in msgspec.structs.fields(StatusView) if f.name == "protocol"]
    assert field.default == PROTOCOL_VERSION == EXAMPLES["StatusView"][0]["protocol"]


def test_the_words_of_version_1_are_all_still_there() -> None:
    assert {"drain", "preempt", "kill"} <= set(DownMode)
    assert {"starting", "running", "paused", "draining", "drained", "stopping"} <= set(NodeState)
