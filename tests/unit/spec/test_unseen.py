"""What a person doesn't see in a text, or takes for something else."""

from __future__ import annotations

import time

import pytest

from leeward.spec.unseen import LONG_BLANK, blanked_lines, longest_line, mixed_words


@pytest.mark.parametrize(("text", "words"), [
    ("plain ASCII", set()), ("caf\u00e9 \u0394x \u03bcs \u043f\u0440\u0438\u0432\u0435\u0442", set()),
    ("p\u0430ypal", {"p\u0430ypal"}), ("is_\u0430dmin = x", {"is_\u0430dmin"}), ("\uff50rint", {"\uff50rint"}),
    ("\U0001d5f2val", {"\U0001d5f2val"}), ("\u039frder", {"\u039frder"}), ("x2\u0445", {"x2\u0445"})])
def test_words_of_two_alphabets_that_look_alike_are_found(text: str, words: set[str]) -> None:
    assert words == mixed_words(text)


@pytest.mark.parametrize(("text", "count"), [
    ("x" + " " * LONG_BLANK + "y", 1), ("x" + " " * (LONG_BLANK - 1) + "y", 0), ("x" + " " * 99 + "\n", 0), (" " * 99, 0),
    (" " * 99 + "\r\n", 0), ("\t" * (LONG_BLANK // 4) + "y\n" + " " * 99 + "z", 2)])
def test_code_behind_long_blanks_is_found(text: str, count: int) -> None:
    assert count == blanked_lines(text)


def test_the_longest_line_is_measured() -> None:
    assert (0, 3) == (longest_line(""), longest_line("a\nabc\nab"))


@pytest.mark.parametrize("text", [" " * 2_000_000 + "\n", "\u0430a " * 500_000, "\u0430" * 2_000_000], ids=range(3))
def test_a_hostile_text_takes_linear_time(text: str) -> None:
    """By processor time: a few seconds at most on a slow machine."""
    before = time.process_time()
    mixed_words(text)
    blanked_lines(text)
    assert time.process_time() - before < 5
