"""What is typed at the prompt of `leeward python`: when it is complete, and how its value is shown."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

import pytest

from leeward_cli.prompt import history_file, is_complete, shown


def printed(source: str, **names: Any) -> str:
    """What running *source* with its value shown prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(shown(source), "<stdin>", "exec"), names)
    return out.getvalue()


@pytest.fixture(autouse=True)
def usual_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of CPython itself, and no `_` is left behind."""
    import builtins

    monkeypatch.setattr(builtins, "_", None, raising=False)
    monkeypatch.setattr(sys, "displayhook", sys.__displayhook__)


@pytest.mark.parametrize(("source", "said"), [
    ("6 * 7", "42\n"), ("'é' # comment", "'é'\n"), ("x = 1", ""), ("x = 1; x + 1", "2\n"), ("6 * 7;", ""), ("None", ""),
    ("1, 2", "(1, 2)\n"), ("*range(2), 3", "(0, 1, 3)\n"), ("(y := 5)", "5\n"), ("'ü'; (1 +\n 2)", "3\n"),
    ("for i in range(2):\n  i\n", ""), ("print(1)", "1\n"), ("[\n 1,\n]", "[1]\n"), ("", ""),
    ("'a' if 1 else 'b'", "'a'\n"), ("lambda: 1\n", "<function"),
])
def test_the_last_expressions_value_is_shown(source: str, said: str) -> None:
    got = printed(source)

    assert said == got if not said.startswith("<") else got.startswith(said)


def test_lines_keep_their_numbers() -> None:
    source = "x = 1\n\n(x /\n 0)"
    with pytest.raises(ZeroDivisionError) as raised:
        printed(source)

    assert 3 == raised.traceback[-1].lineno + 1


@pytest.mark.parametrize("source", ["1 +", "x y", "'", "\0", "(" * 500, "def"])
def test_invalid_code_stays_unchanged(source: str) -> None:
    """The kernel reports its error."""
    assert source == shown(source)


@pytest.mark.parametrize(("source", "complete"), [
    ("1", True), ("(1,", False), ("for i in x:", False), ("for i in x:\n  i", False), ("for i in x:\n  i\n", True),
    ("x y", True), ("'''", False), ("", True), ("@decorated", False), ("if 1: x", False), ("x = [\n1,", False),
    ("x = [\n1]", True), ("\0", True), ("(" * 500, True),
])
def test_a_statement_is_complete(source: str, complete: bool) -> None:
    assert complete is is_complete(source)


def test_the_historys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert "/state/leeward/python_history" == str(history_file())
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert "/home/x/.local/state/leeward/python_history" == str(history_file())
