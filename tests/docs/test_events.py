"""docs/events.md is the vocabulary of events: no more and no less than the source can emit."""

import re

import pytest

from coordinator.core.escalation import Step
from coordinator.core.lease import DropReason, HolderState
from coordinator.core.model import CommandKind, DownMode
from coordinator.leases.answers import ReleaseStatus
from tests.docs.source_events import Puzzle, emitted_events, read_source
from tests.support.events import PAGE, check_events, documented_events, documented_fields

DOCUMENTED = documented_events()
EMITTED = emitted_events()
TEXT = PAGE.read_text(encoding="utf-8")
GOOD = {
    "ts": "2030-01-02T03:04:05.678Z", "event": "run_exited", "level": "info", "node": "a",
    "slot": 0, "run_id": "abc", "pid": 7, "exit_code": 0,
}  # fmt: skip


def test_every_event_of_the_source_is_documented_and_no_other() -> None:
    places = {name: EMITTED[name].places for name in EMITTED.keys() - DOCUMENTED.keys()}
    assert not places, "in the source, not in docs/events.md"
    assert not DOCUMENTED.keys() - EMITTED.keys(), "in docs/events.md, not in the source"


@pytest.mark.parametrize("name", sorted(EMITTED.keys() & DOCUMENTED.keys()))
def test_levels_and_fields_are_those_of_the_source(name: str) -> None:
    page, source = DOCUMENTED[name], EMITTED[name]
    assert page.levels == source.levels, source.places
    assert page.required == (source.always or set()), source.places
    assert page.optional == source.optional, source.places


def test_the_glossary_has_every_field_and_no_other() -> None:
    assert set(documented_fields()) == {name for e in EMITTED.values() for name in e.ever}


def test_a_field_that_ends_in_seconds_says_so() -> None:
    for row in re.findall(
        r"^\| `(\w*seconds)` \| (?:number|integer) \| (.+) \|$", TEXT, re.MULTILINE
    ):
        assert row[1].endswith("in seconds"), row


def test_every_warning_and_error_says_what_to_do() -> None:
    rows = dict(
        re.findall(r"^\| `(\w+)` \| (?:warning|error)[^|]*\|[^|]*\| (.+) \|$", TEXT, re.MULTILINE)
    )
    loud = {name for name, e in DOCUMENTED.items() if e.levels & {"warning", "error"}}
    assert set(rows) == loud
    silent = {name for name, meaning in rows.items() if "**Do:**" not in meaning}
    # These follow another event, which says it, or an order that a person has given.
    assert silent == {
        "console_lines_lost",
        "events_file_write_resumed",
        "lease_freed",
        "lease_given_up",
        "run_fenced",
        "shim_refused",
    }


@pytest.mark.parametrize(
    "words", [Step, DropReason, HolderState, CommandKind, DownMode, ReleaseStatus]
)
def test_the_glossary_names_every_word_that_a_field_can_have(words: type) -> None:
    glossary = TEXT.partition("\n## Fields\n")[2]
    members = [member.value for member in words]  # type: ignore[attr-defined]
    assert [word for word in members if f"`{word}`" not in glossary] == []


# --- the reader of the source finds violations ----------------------------------------------------
@pytest.mark.parametrize(
    "source",
    [
        "log.info(name, slot=1)",
        "log.info(f'run_{what}')",
        "log.info('Run started')",
        "log.info('runStarted')",
        "log.warning('run_started', **unknown())",
        "log.warning('run_started', **event)",
        "def f():\n    fields = {key: 1}\n    log.info('run_started', **fields)",
    ],
)
def test_what_cannot_be_read_without_running_it_is_refused(source: str) -> None:
    with pytest.raises(Puzzle):
        read_source(source)


def test_expansions_branches_and_tracebacks_are_followed() -> None:
    found = read_source(
        "def how():\n"
        "    if x:\n"
        "        return {'signal': 1}\n"
        "    return {'exit_code': 1}\n"
        "def f():\n"
        "    fields = {'slot': 1, 'exc_info': e}\n"
        "    log.info('a_b' if x else 'c_d', **fields, **how(), node=1)\n"
        "    log.exception('a_b', slot=1)\n"
    )
    assert found["c_d"].always == {"slot", "node_"}
    assert found["c_d"].optional == {"exception", "signal", "exit_code"}
    assert found["a_b"].levels == {"info", "error"}
    assert found["a_b"].always == {"slot"}


# --- the check of emitted events finds violations -------------------------------------------------
def test_an_event_as_documented_passes() -> None:
    check_events([GOOD, GOOD | {"exit_code": None}])
    check_events([{key: value for key, value in GOOD.items() if key != "exit_code"}])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"event": "run_vanished"}, "run_vanished: is not in docs/events.md"),
        ({"level": "error"}, "level 'error'"),
        ({"colour": "red"}, "field colour is not documented"),
        ({"pid": "seven"}, "field pid is 'seven', not integer or null"),
        ({"slot": True}, "field slot is True"),
        ({"ts": "2030-01-02 03:04:05"}, "ts is"),
    ],
)
def test_a_deviation_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(words)):
        check_events([GOOD | change])


def test_a_missing_field_and_a_missing_head_are_named() -> None:
    without = {key: value for key, value in GOOD.items() if key != "pid"}
    with pytest.raises(AssertionError, match="field pid is missing"):
        check_events([without])
    with pytest.raises(AssertionError, match="does not begin with ts, event, level, node"):
        check_events([{"node": "a"} | GOOD])
