"""One line about each limit that was reached, and about a missing package."""

from __future__ import annotations

import pytest

from leeward.base.hints import LIMITS, MISSING, NOT_RENAMED, hint
from leeward.client.model_text import text_of
from leeward.spec.outcome import JobError, Limit, Outcome, Result
from leeward.wire.answers import result_fields


def test_every_limit_has_one() -> None:
    assert {limit.value for limit in Limit} == set(LIMITS)


@pytest.mark.parametrize("limit", [*Limit, None])
def test_a_result_has_that_of_its_limit(limit: Limit | None) -> None:
    line = Result(b"", b"", 0, Outcome.FINISHED, limit=limit).hint

    assert bool(limit) == bool(line)
    assert hint(limit) == line
    assert "\n" not in line


def lacking(message: str, kind: str = "ModuleNotFoundError") -> Result:
    return Result(b"", b"", 1, Outcome.RAISED, error=JobError(kind, message, ""))


@pytest.mark.parametrize("name", ["numpy", "google.cloud", "größe"])
def test_a_missing_package(name: str) -> None:
    result = lacking(f"No module named '{name}'")

    assert MISSING == result.hint == result_fields(result)["hint"]
    assert f"[{MISSING}]\n[Exit code: 1]" in text_of(result)
    assert name not in result.hint


@pytest.mark.parametrize(("kind", "message"), [
    ("ModuleNotFoundError", "No module named 'tkinter'"), ("ModuleNotFoundError", "No module named 'xml.none'"),
    ("ModuleNotFoundError", "No module named 'mine.part'; 'mine' is not a package"),
    ("ModuleNotFoundError", "No module named 'numpy'\x1b[2J'"), ("ModuleNotFoundError", "No module named ''"),
    ("ModuleNotFoundError", "No module named '"), ("ModuleNotFoundError", ""), ("ImportError", "No module named 'numpy'")])
def test_what_no_package_would_mend_has_none(kind: str, message: str) -> None:
    result = lacking(message, kind)

    assert "" == result.hint
    assert "hint" not in result_fields(result)


@pytest.mark.parametrize("result", [
    lacking("[Errno 18] Invalid cross-device link: 'a' -> 'b'", "OSError"),
    *(Result(b"", said, 128, Outcome.FINISHED) for said in (
        b"fatal: renaming 'a' failed: Invalid cross-device link\n", b"mv: can't rename 'a': Cross-device link\n",
        b"rename a b: invalid cross-device link\n", b"Error: EXDEV: cross-device link not permitted, rename 'a' -> 'b'",
        b"  errno: -18,\n  code: 'EXDEV',\n"))])
def test_a_folder_that_can_not_be_renamed(result: Result) -> None:
    """In an overlay, or between two of a sandbox's folders."""
    assert NOT_RENAMED == result.hint


@pytest.mark.parametrize("result", [
    lacking("[Errno 180] x", "OSError"), lacking("[Errno 18] x", "ValueError"),
    Result(b"Invalid cross-device link", b"", 1, Outcome.FINISHED),
    Result(b"", b"Invalid cross-device link", 0, Outcome.FINISHED)])
def test_what_was_renamed_after_all_has_none(result: Result) -> None:
    """`mv` says nothing of it."""
    assert "" == result.hint


def test_a_limit_comes_first() -> None:
    assert hint("time") == hint("time", ("ModuleNotFoundError", "No module named 'numpy'"))
