"""Every test that ARCHITECTURE.md names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)?::(\w+)`|`(tests/[\w/]+\.py)`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """File and test function ('' for a whole file); `::name` alone is in the file named last."""
    found, file = list[tuple[str, str]](), ""
    for own, name, whole in NAMED.findall(text):
        file = own or whole or file
        found.append((file, name))
    return found


def test_every_test_that_guards_something_exists() -> None:
    named = named_tests((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    for file, name in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, f"{file}::{name}"
