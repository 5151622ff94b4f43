"""Colours of a command's output as HTML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.web.drawing import plain
from leeward.apps.approvals.web.terminal_text import terminal_text


@pytest.mark.parametrize(("text", "shown"), [
    ("a\x1b[31mb\x1b[0mc", 'a<span class="o-red">b</span>c'),
    ("\x1b[1;92mb\x1b[mc", '<span class="o-bold o-green">b</span>c'),
    ("\x1b[4mb\x1b[24mc", '<span class="o-under">b</span>c'), ("\x1b[31ma\x1b[39mb", '<span class="o-red">a</span>b'),
    ("\x1b[31m<b>", '<span class="o-red">&lt;b&gt;</span>')])
def test_colours_are_shown(text: str, shown: str) -> None:
    assert shown == terminal_text(text, 1000)


@pytest.mark.parametrize("text", [
    "\x1b[8mhidden", "\x1b[41mground", "\x1b[38;5;1mx", "\x1b[31;8mx", "\x1b[5mx", "\x1b[2Jx", "\x1b]0;title\x07",
    "\x1b[1;1Hx", "\x1b[31", "\x1b[0031mx", "\x9b31mx"])
def test_c511_whatever_else_a_terminal_would_obey_is_a_mark(text: str) -> None:
    shown = terminal_text(text, 1000)
    assert 'class="hid"' in shown
    assert "o-" not in shown


@given(st.text(st.sampled_from("\x1b[]0138;mx<>&\"'\u202e\n"), max_size=60))
def test_text_stays_text(text: str) -> None:
    shown = terminal_text(text, 1000)
    assert not {"\x1b", "\u202e"} & set(shown)
    assert shown.count("<") == shown.count("<span") + shown.count("</span")
    if "\x1b" not in text:
        assert plain(text).count("x") == shown.count("x")


def test_a_long_output_is_cut() -> None:
    assert "7 characters more" in terminal_text("x" * 17, 10)
