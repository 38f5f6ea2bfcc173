"""Reading a JSON object field by field."""

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.cli.fields import Fields
from coordinator.errors import ControlError

DATA = {
    "text": "t", "number": 7, "flag": True, "null": None, "texts": ["a", "b"],
    "inner": {"each": [{"number": 1}, {"number": 2}]}, "mixed": ["a", 1],
}  # fmt: skip


def test_each_field_is_given_as_its_kind() -> None:
    fields = Fields(DATA)
    assert (fields.text("text"), fields.number("number"), fields.flag("flag")) == ("t", 7, True)
    assert fields.text_or_none("null") is None
    assert fields.number_or_none("null") is None
    assert (fields.text_or_none("text"), fields.number_or_none("number")) == ("t", 7)
    assert fields.texts("texts") == ["a", "b"]
    assert [one.number("number") for one in fields.inner("inner").each("each")] == [1, 2]


def test_a_default_replaces_what_an_older_daemon_does_not_send() -> None:
    fields = Fields({})
    assert (fields.text("x", ""), fields.number("x", 0)) == ("", 0)
    assert fields.flag("x", default=False) is False


@pytest.mark.parametrize(
    ("read", "where"),
    [
        (lambda f: f.text("number"), "number"),
        (lambda f: f.text("missing"), "missing"),
        (lambda f: f.text("null", ""), "null"),
        (lambda f: f.number("flag"), "flag"),
        (lambda f: f.number("text"), "text"),
        (lambda f: f.flag("number"), "number"),
        (lambda f: f.text_or_none("missing"), "missing"),
        (lambda f: f.number_or_none("missing"), "missing"),
        (lambda f: f.texts("mixed"), "mixed"),
        (lambda f: f.texts("text"), "text"),
        (lambda f: f.each("texts"), "texts[0]"),
        (lambda f: f.inner("text"), "text"),
        (lambda f: f.inner("inner").each("each")[1].text("number"), "inner.each[1].number"),
        (lambda _f: Fields(None), "the answer"),
    ],
)
def test_what_is_not_of_its_kind_is_named(read: Callable[[Fields], Any], where: str) -> None:
    with pytest.raises(ControlError, match=r"is missing or has the wrong type") as caught:
        read(Fields(DATA))
    assert f"({where} is" in str(caught.value)
    assert caught.value.exit_code == 1
