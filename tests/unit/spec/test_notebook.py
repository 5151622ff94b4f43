"""What a notebook gets of a result: nothing in it is a part of its page that a job wrote."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from leeward.spec.notebook import POLICY, bundle
from leeward.spec.outcome import LeftOut, LeftOutReason, Outcome, Result

HOSTILE = "<script>alert(1)</script><img src=x onerror=1></pre></iframe>\"'><form action=//x><a href=javascript:1>"

#: What may be in the page, and what each may say.
MAY = {"pre": {"style"}, "img": {"alt", "style", "src"}, "iframe": {"sandbox", "style", "srcdoc"}}


class Page(HTMLParser):
    """The elements of a page, as a browser has them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def page(result: Result) -> Page:
    return Page(bundle(result)["text/html"])


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml",
                                  "application/json"])
def test_hostile_text_adds_no_element(kind: str) -> None:
    """In every place where a job's text comes."""
    result = Result(HOSTILE.encode(), HOSTILE.encode(), 1, Outcome.RAISED, results=({kind: HOSTILE},), value=HOSTILE,
                    left_out=(LeftOut(HOSTILE, LeftOutReason.TOO_LARGE),))

    elements = page(result).elements

    assert 5 == len(elements)
    for name, attributes in elements:
        assert set(attributes) <= MAY[name]
        assert "iframe" != name or ("" == attributes["sandbox"] and (attributes["srcdoc"] or "").startswith(POLICY))
        assert "img" != name or (attributes["src"] or "").startswith("data:image/")


def test_the_html_of_a_job_comes_whole_in_its_frame() -> None:
    (name, attributes), = page(Result(b"", b"", 0, Outcome.FINISHED, results=({"text/html": HOSTILE},))).elements

    assert ("iframe", POLICY + HOSTILE) == (name, attributes["srcdoc"])


def test_a_picture_is_shown_before_other_forms() -> None:
    (name, attributes), = page(Result(b"", b"", 0, Outcome.FINISHED, results=(
        {"text/plain": "x", "text/html": "x", "image/png": b"\x89PNG"},))).elements

    assert ("img", "data:image/png;base64,iVBORw==") == (name, attributes["src"])


def test_a_result_without_a_shown_value_is_text() -> None:
    result = Result(b"", b"", 0, Outcome.FINISHED)

    assert {"text/plain": repr(result)} == result._repr_mimebundle_()


def test_a_type_without_a_display_form_is_named() -> None:
    shown = bundle(Result(b"x" * 30_000, b"", 0, Outcome.FINISHED, results=({"application/pdf": b"%PDF"},)))

    assert "application/pdf: 4 bytes" in shown["text/html"]
    assert "10000 characters more" in shown["text/html"]
