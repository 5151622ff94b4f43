"""A change as rows: which lines stand beside which, and what in them differs."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.carrying.detail import file_hunks
from leeward.apps.approvals.carrying.orders import MOST_WIDTH
from leeward.apps.approvals.web.drawing import MOST_LINES, DiffHunk, coloured, hunks_of

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "d = 1", "\u202e", "<b>"]), max_size=12).map(
    lambda lines: "".join(f"{line}\n" for line in lines))


def drawn(before: str, after: str, path: str = "a.py") -> list[DiffHunk]:
    return hunks_of(before, after, path, [hunk.row() for hunk in file_hunks(before.encode(), after.encode())])


def bare(line: str) -> str:
    return re.sub("<[^>]*>", "", str(line))


def test_a_changed_line_stands_beside_its_new_form() -> None:
    found, = drawn("1\n2\n3\n4\nold text here\n6\n7\n8\n9\n", "1\n2\n3\n4\nold word here\nnew\n6\n7\n8\n9\n", "x")

    assert "@@ -5,1 +5,2 @@" == found.head
    assert ["same"] * 3 + ["changed", "added"] + ["same"] * 3 == [row.kind for row in found.rows]
    changed, added = found.rows[3:5]
    assert (5, 'old <span class="dif">text</span> here') == changed.old
    assert (5, 'old <span class="dif">word</span> here') == changed.new
    assert (None, (6, "new")) == (added.old, added.new)
    assert [("same", 2, 2), ("same", 3, 3), ("same", 4, 4), ("removed", 5, None), ("added", None, 5),
            ("added", None, 6), ("same", 6, 7), ("same", 7, 8), ("same", 8, 9)] == [row[:3] for row in found.unified]


@given(LINES, LINES)
def test_the_rows_are_the_two_files(before: str, after: str) -> None:
    old, new = before.split("\n"), after.split("\n")
    for hunk in drawn(before, after):
        for row in hunk.rows:
            for side, lines in ((row.old, old), (row.new, new)):
                if side is not None:
                    shown = lines[side[0] - 1].replace("\u202e", "RLO").replace("<b>", "&lt;b&gt;")
                    assert shown == bare(side[1])
            assert "same" != row.kind or (row.old and row.new and bare(row.old[1]) == bare(row.new[1]))


def test_lines_beyond_the_bound_are_left_out_and_counted() -> None:
    hunk, = drawn("", "x\n" * (MOST_LINES + 50), "x")
    assert (MOST_LINES, 50) == (len(hunk.rows), hunk.left_out)

    hunk, = drawn("", "y" * (MOST_WIDTH * 2) + "\n", "x.py")
    assert hunk.rows[0].new is not None
    assert hunk.rows[0].new[1].endswith(f"… {MOST_WIDTH:,} characters more</span>")


def test_ends_of_lines_are_seen() -> None:
    hunk, = drawn("a\n", "a\r\n", "x")

    assert hunk.rows[0].new is not None
    assert "CR</span>" in hunk.rows[0].new[1]


@pytest.mark.parametrize(("path", "text", "colours"), [
    ("a.py", "if x: # no\n", [[("if", "k"), (" x: ", ""), ("# no", "c")], []]),
    ("a.py", '"""a\nb""" 1', [[('"""a', "s")], [('b"""', "s"), (" ", ""), ("1", "n")]]),
    ("a.js", "/* a\n*/ 'b\\'c' // d", [[("/* a", "c")], [("*/", "c"), (" ", ""), ("'b\\'c'", "s"), (" ", ""),
                                                       ("// d", "c")]]),
    ("a.js", "'open\nif", [[("'open", "s")], [("if", "k")]]), ("a.c", "/* never", [[("/* never", "c")]]),
    ("a.sql", "-- x", [[("-- x", "c")]]), ("a.html", "<!-- x --> if", [[("<!-- x -->", "c"), (" ", ""), ("if", "k")]])])
def test_words_of_a_language_have_colours(path: str, text: str, colours: list[object]) -> None:
    assert colours == coloured(text, path)


def test_an_unknown_language_has_no_colours() -> None:
    assert coloured("if", "a.unknown") is None
    assert coloured("x" * 500_000, "a.py") is None


@given(st.text(st.sampled_from("\"'`\\/*#\n ab1<!->")), st.sampled_from(["a.py", "a.js", "a.sql", "a.html", "a.json"]))
def test_colours_lose_no_character(text: str, path: str) -> None:
    found = coloured(text, path)

    assert found is not None
    assert text == "\n".join("".join(piece for piece, _ in line) for line in found)


@pytest.mark.parametrize("text", ["/*" * 100_000, '"' * 200_000, '\\"' * 100_000, "'\\" * 100_000, '"""' * 60_000,
                                  "a" * 200_000, "1." * 100_000, "<!--" * 50_000])
def test_c332_no_text_makes_colours_slow(text: str) -> None:
    for path in ("a.py", "a.js", "a.html"):
        begun = time.process_time()
        coloured(text, path)
        assert time.process_time() - begun < 5
