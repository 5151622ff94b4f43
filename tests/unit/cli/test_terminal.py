"""Where a title may be written between a program's output."""

from __future__ import annotations

import pytest

from leeward_cli.terminal import unfinished


@pytest.mark.parametrize("output", [
    b"", b"text\n", b"\x1b[0m", b"\x1b[38;5;1mred", b"\x1b]0;title\x07", b"\x1b]8;;x\x1b\\", b"\x1b(B", b"\x1b7",
    b"\x1bPq#0\x1b\\", "\u00e9\u20ac\U0001f600".encode(), b"\x1b[?2026h", b"\xff\xff"])
def test_whole_output_has_no_unfinished_end(output: bytes) -> None:
    assert b"" == unfinished(output)


@pytest.mark.parametrize(("output", "end"), [
    (b"a\x1b", b"\x1b"), (b"a\x1b[", b"\x1b["), (b"a\x1b[38;5", b"\x1b[38;5"), (b"\x1b]0;title", b"\x1b]0;title"),
    (b"\x1b]0;title\x1b", b"\x1b"), (b"\x1b(", b"\x1b("), (b"\x1bPq#0", b"\x1bPq#0"), (b"a\xc3", b"\xc3"),
    (b"a\xe2\x82", b"\xe2\x82"), (b"a\xf0\x9f\x98", b"\xf0\x9f\x98"), (b"\x1b[0m\xc3", b"\xc3")])
def test_what_has_begun_is_the_end(output: bytes, end: bytes) -> None:
    assert end == unfinished(output)


def test_a_sequence_without_an_end_is_given_up() -> None:
    assert b"" == unfinished(b"\x1b]52;" + b"a" * 70_000)
