"""The plan of live sync: what one path needs, by what both sides had, what the sandbox has and what the host has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.carrying.orders import NOTHING, FileState, digest
from leeward.apps.approvals.sync.syncing import (
    BURST_BYTES,
    BURST_FILES,
    FILES_S,
    InsideView,
    SyncBudget,
    agree,
    is_skipped,
    sync_option,
    three_way,
)
from leeward.client.changes import UpperRow
from leeward.errors import BadRequest


def file(content: str, mode: int = 0o644) -> FileState:
    return FileState("file", mode, digest(content.encode()))


#: What neither side has.
OTHER = FileState("special", 1)


def row(path: str, kind: str = "file", content: str = "", *, hides: bool = False, mode: int = 0o644) -> UpperRow:
    found = bytes.fromhex(digest(content.encode())) if "file" == kind else None
    return UpperRow(path.encode(), kind, mode, len(content), 512, 0, found, b"", hides)


A, B, C, FOLDER = file("a"), file("b"), file("c"), FileState("folder", 0o755)


@pytest.mark.parametrize(("base", "inside", "host", "move"), [
    (A, A, A, "same"),
    (A, B, A, "to_host"),
    (A, NOTHING, A, "to_host"),
    (NOTHING, A, NOTHING, "to_host"),
    (A, A, B, "to_sandbox"),
    (A, A, NOTHING, "to_sandbox"),
    (NOTHING, NOTHING, A, "to_sandbox"),
    (A, B, B, "same"),
    (A, NOTHING, NOTHING, "same"),
    (None, A, A, "same"),
    (A, B, C, "conflict"),
    (A, NOTHING, B, "conflict"),
    (A, B, NOTHING, "conflict"),
    (NOTHING, A, B, "conflict"),
    (None, A, B, "conflict"),
    (None, NOTHING, B, "conflict"),
    (A, file("a", 0o755), A, "to_host"),
    (A, FOLDER, A, "to_host"),
    (FOLDER, NOTHING, FOLDER, "to_host"),
    (FOLDER, FOLDER, FileState("folder", 0o2755), "same"),
])
def test_the_plan_follows_the_side_that_has_changed(base: FileState | None, inside: FileState, host: FileState,
                                                    move: str) -> None:
    assert move == three_way(base, inside, host)


_STATES = st.sampled_from((NOTHING, A, B, C, FOLDER, FileState("link", link="a"), file("a", 0o755)))


@given(_STATES | st.none(), _STATES, _STATES)
def test_content_that_only_one_side_has_is_never_overwritten(base: FileState | None, inside: FileState,
                                                             host: FileState) -> None:
    move = three_way(base, inside, host)
    if "to_host" == move:
        assert agree(base or OTHER, host), "the host has something that the sandbox has never had"
    if "to_sandbox" == move:
        assert agree(base or OTHER, inside), "the sandbox has something that the host has never had"
    assert ("same" == move) == agree(inside, host)


def test_the_state_of_a_sandbox_is_read_from_its_upper_folder() -> None:
    view = InsideView({each.path.decode(): each for each in (
        row("a", content="x", mode=0o4644), row("gone", "gone"), row("new", "folder", hides=True),
        row("kept", "folder"), row("kept/in/deep", content="y"))})
    assert file("x") == view.state("a")
    assert NOTHING == view.state("gone") == view.state("gone/b/c") == view.state("new/b")
    assert view.state("kept/b") is None
    assert view.state("other") is None
    assert file("y") == view.state("kept/in/deep")
    assert NOTHING == view.state("a/b")


@pytest.mark.parametrize(("path", "skipped"), [
    (".git", True), (".git/HEAD", True), ("sub/.GIT/config", True), ("node_modules/a", True),
    (".leeward-0123456789abcdef", True), ("a/.leeward-sync-0123456789abcdef", True),
    (".gitignore", False), ("a/node_modules.py", False), (".leeward-notes", False),
])
def test_excluded_paths_are_not_synced(path: str, skipped: bool) -> None:
    assert skipped == is_skipped(path)


def test_the_budget_is_a_burst_that_refills() -> None:
    budget = SyncBudget(0.0)
    assert all(budget.take(10, 0.0) for _ in range(BURST_FILES))
    assert not budget.take(10, 0.0)
    assert budget.take(10, 1.0 / FILES_S)
    assert not budget.take(10, 0.0), "a clock that goes back gives nothing"
    assert not SyncBudget(0.0).take(BURST_BYTES + 1, 0.0)


@pytest.mark.parametrize(("options", "after"), [
    ({}, None), ({"sync": False}, None), ({"sync": True}, ""),
    ({"sync": True, "sync_after": "./.git/HEAD"}, ".git/HEAD"),
])
def test_options(options: dict[str, Any], after: str | None) -> None:
    assert after == sync_option(options)
    assert {} == options


@pytest.mark.parametrize("options", [
    {"sync": 1}, {"sync": "yes"}, {"sync_after": "a"}, {"sync": True, "sync_after": "../a"},
    {"sync": True, "sync_after": 3}, {"sync": True, "sync_after": "/a"},
])
def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        sync_option(options)
