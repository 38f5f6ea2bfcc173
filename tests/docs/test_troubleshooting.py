"""docs/troubleshooting.md has every message that the source can show, and no other."""

import ast
import re

import pytest

from coordinator.cli.exit_codes import ExitCode
from tests.docs.blocks import DOCS
from tests.docs.source_messages import (
    HOLE,
    PACKAGE,
    ROOT,
    Message,
    error_classes,
    messages,
    modules,
    returned,
)

TEXT = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
TREES = modules()
MESSAGES = messages(TREES)
PROBLEMS = [m for m in returned(TREES["coordinator/leases/sight.py"], "explain") if m.is_telling]
CTL = "Messages of coordinatorctl"


def _plain(line: str) -> str:
    """The message of a row: its first cell without the marks of code, which may be two."""
    cell = line.removeprefix("| ").partition(" | ")[0].strip()
    ticks = "``" if cell.startswith("``") else "`"
    return cell.removeprefix(ticks).removesuffix(ticks).strip()


def quoted() -> list[tuple[str, str]]:
    """The first cells of all tables of messages, each with its section."""
    found: list[tuple[str, str]] = []
    section, inside = "", False
    for line in TEXT.splitlines():
        if line.startswith("#"):
            section = line.strip("# ")
        if re.match(r"\| (message|problem) \|", line):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|--"):
            cell = line
            found.append((section, _plain(cell)))
    return found


QUOTED = quoted()


def name(message: Message) -> str:
    return f"{message.place} {message.template.replace(HOLE, '…')[:50]}"


@pytest.mark.parametrize("message", [*MESSAGES, *PROBLEMS], ids=name)
def test_every_message_of_the_source_is_on_the_page(message: Message) -> None:
    assert any(message.pattern.search(text) for _, text in QUOTED), message


@pytest.mark.parametrize(("section", "text"), QUOTED)
def test_every_message_on_the_page_is_one_of_the_source(section: str, text: str) -> None:
    assert section
    if text.startswith("Error 111 connecting to"):
        return  # redis-py's own words, which `explain` passes on
    assert any(m.pattern.fullmatch(text) for m in [*MESSAGES, *PROBLEMS])


def test_no_message_is_there_twice() -> None:
    texts = [text for section, text in QUOTED if not text.startswith("Redis refuses")]
    assert sorted(set(texts)) == sorted(texts)


@pytest.mark.parametrize("error", sorted(error_classes(TREES).keys() - {ROOT}))
def test_every_error_class_has_a_message_on_the_page(error: str) -> None:
    own = [message for message in MESSAGES if message.owner == error]
    assert any(message.pattern.search(text) for message in own for _, text in QUOTED)


def test_every_row_says_what_to_do_in_plain_cells() -> None:
    for line in TEXT.splitlines():
        if line.startswith("| `"):
            assert line.endswith("|")
            assert line[2:].rstrip("| ").rpartition(" | ")[2].strip(), line


def test_the_exit_codes_of_coordinatorctl_are_those_of_the_code() -> None:
    section = TEXT.partition(f"## {CTL}")[2]
    codes = re.findall(r"^\| .+ \| (\d+) \| .+ \|$", section, re.MULTILINE)
    shown = {int(code) for code in codes}
    assert shown == {
        ExitCode.FAILED,
        ExitCode.USAGE,
        ExitCode.NOT_RUNNING,
        ExitCode.TIMED_OUT,
        ExitCode.REFUSED,
    }
    expected = {"Invalid": "2", "Refused": "6", "Failed": "1"}
    for message in MESSAGES:
        if message.owner in expected:
            rows = [row for row in section.splitlines() if message.pattern.search(_plain(row))]
            assert rows, message
            assert all(f"| {expected[message.owner]} |" in row for row in rows)


# --- the reader of the source finds violations ----------------------------------------------------
def test_messages_are_read_through_classes_and_functions() -> None:
    tree = ast.parse(
        "LIMIT = 107\n"
        "class CoordinatorError(Exception): ...\n"
        "class UserError(CoordinatorError): ...\n"
        "class PathError(UserError):\n"
        "    def __init__(self, path, problem):\n"
        "        super().__init__(f'path {path}: {problem}')\n"
        "def _bad(key, problem):\n"
        "    return PathError(f'[x] {key}', problem)\n"
        "def f(x):\n"
        "    message = f'user {x} must not'\n"
        "    raise UserError(message)\n"
        "def g(x):\n"
        "    raise _bad('ttl', f'has more than {LIMIT} bytes, {x!r}')\n"
        "raise PathError('p', str(x))\n"
    )
    found = {(m.owner, m.template.replace(HOLE, "…")) for m in messages({"m.py": tree})}
    assert found == {
        ("UserError", "user … must not"),
        ("PathError", "path [x] ttl: has more than 107 bytes, …"),
    }


def test_the_reader_sees_the_whole_package() -> None:
    assert len(MESSAGES) > 60
    assert {message.place.partition("/")[2].partition("/")[0] for message in MESSAGES} >= {
        "cli", "config", "control", "core", "daemon", "leases", "redis_server", "supervisor",
        "wandb_account",
    }  # fmt: skip
    assert PACKAGE.name == "coordinator"
