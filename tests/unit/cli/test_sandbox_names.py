"""Which sandbox a word means."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, DaemonAway
from leeward_cli.sandbox_names import asked_id, names, sandbox_id

ONE, TWO, WEB = "abcd" + "a" * 22, "abef" + "a" * 22, "web" + "a" * 23
ROWS: list[dict[str, Any]] = [
    {"sandbox": ONE, "metadata": {"name": "web"}},
    {"sandbox": TWO, "metadata": {"agent": "claude", "instance": "p-claude-x"}},
    {"sandbox": WEB, "metadata": {"name": "\x1b[0m"}}]


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "list", lambda socket=None: ROWS)


@pytest.mark.parametrize(("text", "found"), [
    (ONE, ONE), ("z" * 26, "z" * 26), ("", ""), ("abc", ONE), ("web", ONE), ("weba", WEB), ("claude", TWO),
    ("p-claude-x", TWO)])
def test_an_id_its_beginning_and_a_name(text: str, found: str) -> None:
    """A name goes before the beginning of an id."""
    assert found == sandbox_id(text, None)


@pytest.mark.parametrize(("text", "why"), [
    ("ab", r"fits several sandboxes: abcdaaaa \('web'\), abefaaaa \('p-claude-x'\)"), ("none", "has the name 'none'"),
    ("\x1b", r"'\\x1b'")])
def test_none_and_several_are_named(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        sandbox_id(text, None)


def test_a_jobs_number_and_what_has_ended_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ["12", ONE, "openat", "z" * 26, ""] == [asked_id(each, None) for each in ("12", "web", "openat", "z" * 26, "")]

    def away(socket: object = None) -> None:
        raise DaemonAway("no")

    monkeypatch.setattr(Sandbox, "list", away)
    assert "web" == asked_id("web", None)


def test_both_complete_a_line() -> None:
    assert [ONE, "web", TWO, WEB, "\x1b[0m"] == [*names(ROWS)]
