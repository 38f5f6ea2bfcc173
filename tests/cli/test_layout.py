"""Plain tables: columns, folding, colour, text that is only text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli import layout
from coordinator.cli.layout import cell, fold, pairs, paragraph, size, table
from coordinator.cli.terminal import Page

WIDE = Page(80)
TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)


def test_columns_line_up_and_lines_end_without_blanks() -> None:
    rows = [[cell("run-1"), cell(None)], [cell("r"), cell(12345)]]
    assert table(["run", "pid"], rows, WIDE) == ["run    pid", "run-1  -", "r      12345"]


def test_the_widest_column_gives_way_and_its_cells_fold() -> None:
    rows = [[cell("x" * 25), cell("running")]]
    lines = table(["run", "state"], rows, Page(20))
    assert lines == ["run          state", "x" * 11 + "  running", "x" * 11, "xxx"]


def test_text_is_folded_at_blanks_where_there_are_some() -> None:
    assert fold("one two three", 7) == ["one two", "three"]
    assert fold("one twothree", 7) == ["one", "twothre", "e"]
    assert fold("", 7) == [""]
    lines = paragraph("the disk of the state directory is full", "", Page(20), indent="  ! ")
    assert lines == ["  ! the disk of the", "    state directory", "    is full"]


def test_characters_of_two_columns_and_of_none_are_counted() -> None:
    assert size("日本") == 4
    assert size("e\u0301") == 1
    assert fold("日本語", 4) == ["日本", "語"]
    assert table(["a", "b"], [[cell("日本"), cell("x")]], WIDE) == ["a     b", "日本  x"]


def test_colour_surrounds_the_word_and_not_its_column() -> None:
    rows = [[cell("up", layout.GREEN), cell("1")], [cell("silent", layout.RED), cell("2")]]
    assert table(["state", "n"], rows, Page(80, colour=True)) == [
        "\x1b[1mstate\x1b[0m   \x1b[1mn\x1b[0m",
        "\x1b[32mup\x1b[0m      1",
        "\x1b[31msilent\x1b[0m  2",
    ]


def test_what_the_daemon_says_is_text() -> None:
    evil = "a\x1b[2Jb\nc\u202ed\x9bm"
    shown = [*pairs([("node", evil)], WIDE), *paragraph(evil, "", WIDE)]
    assert shown == [r"node  a\x1b[2Jb\nc\u202ed\x9bm", r"a\x1b[2Jb\nc\u202ed\x9bm"]


def test_what_the_encoding_lacks_is_measured_as_it_is_written() -> None:
    lines = table(["n", "m"], [[cell("kö"), cell("x")]], Page(80, encoding="ascii"))
    assert lines == ["n      m", r"k\xf6  x"]


@given(
    rows=st.lists(st.lists(TEXT, min_size=5, max_size=5), min_size=1, max_size=4),
    columns=st.integers(28, 100),
)
def test_no_table_is_wider_than_its_page_and_nothing_is_lost(
    rows: list[list[str]], columns: int
) -> None:
    page = Page(columns)
    lines = table(["h"] * 5, [[cell(text) for text in row] for row in rows], page)
    assert max(map(size, lines)) <= columns
    assert all(line.isprintable() for line in lines)
    shown = re.sub(r"\s", "", "".join(lines))
    expected = re.sub(r"\s", "", "".join(page.text(text) for row in rows for text in row))
    assert sorted(shown) == sorted("hhhhh" + expected)


@pytest.mark.parametrize("columns", [1, 5, 19])
def test_a_page_that_is_too_narrow_still_gets_its_table(columns: int) -> None:
    lines = table(["a", "b", "c"], [[cell("x" * 30), cell("日本語"), cell("z")]], Page(columns))
    assert "".join(lines).count("x") == 30
