"""Characters that aren't seen are marked, and nothing of a text becomes HTML."""

from __future__ import annotations

import html
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from leeward.apps.approvals.web.drawing import marked, pieces, plain
from leeward.spec.unseen import is_hidden


@pytest.mark.parametrize(("text", "shown"), [
    ("plain", "plain"), ("", ""), ("a\tb\nc", "a\tb\nc"), ("é ß 漢字 — …", "é ß 漢字 — …"),
    ("a\u202eb", "a[RLO]b"), ("\x1b[31m", "[ESC][31m"), ("a\rb", "a[CR]b"), ("\x00", "[NUL]"), ("a\u200bb", "a[ZWSP]b"),
    ("a\u00a0b", "a[NBSP]b"), ("\ufeff", "[BOM]"), ("\u2028", "[U+2028]"), ("\U000e0041", "[U+E0041]"),
    ("\ud800", "[U+D800]"),
    ("e\u0301", "e\u0301"), ("e" + "\u0301" * 5, "e" + "\u0301" * 3 + "[U+0301][U+0301]")])
def test_invisible_letters_are_named(text: str, shown: str) -> None:
    assert shown == plain(text)


@given(st.text(st.characters()))
def test_the_pieces_make_up_the_text_and_no_letter_stays_hidden(text: str) -> None:
    assert text == "".join(piece for piece, _ in pieces(text))
    assert not any(is_hidden(letter) for piece, name in pieces(text) if not name for letter in piece)
    assert not any(is_hidden(letter) for letter in str(marked(text)))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_becomes_html(text: str) -> None:
    found = marked(text)

    assert isinstance(found, Markup)
    inner = re.sub(r'<span class="hid" title="(?:[A-Za-z0-9+ -]|&#39;)*">([A-Z0-9+]+)</span>', r"[\1]", found)
    assert not re.search("[<>\"']", inner)  # nor half of an entity, which unescaping would tell
    assert plain(text) == html.unescape(inner)


def test_a_long_text_is_cut_with_a_mark() -> None:
    assert "aaa<span class=\"cut\">… 999,997 characters more</span>" == marked("a" * 1_000_000, 3)


def test_a_hostile_text_takes_no_time() -> None:
    begun = time.process_time()
    marked("\u202e" * 100_000)

    assert time.process_time() - begun < 5
