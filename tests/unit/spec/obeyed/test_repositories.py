"""Repositories, by what git and its relatives recognise."""

from __future__ import annotations

import pytest

from leeward.spec.obeyed.repositories import INSIDE, is_repository, makes_repository, names_repository


@pytest.mark.parametrize(("names", "expected"), [
    (("HEAD", "objects", "refs"), True), (("head", "Objects", "REFS", "x"), True), (("HEAD", "commondir"), True),
    (("format", "db", "hooks", "conf"), True), (("HEAD", "objects"), False), (("objects", "refs"), False), ((), False),
    (("HE\xadAD" + "\u200b" * 10, "objects.", "refs::$INDEX_ALLOCATION"), True),
])
def test_a_folder_is_a_repository_by_what_is_in_it(names: tuple[str, ...], expected: bool) -> None:
    assert expected == is_repository(names)


@pytest.mark.parametrize(("path", "expected"), [
    ("a/.git/config", True), (".GIT", True), ("x/.hg/hgrc", True), (".jj/repo", True), (".svn/entries", True),
    (".fslckout", True), ("_FOSSIL_", True), (".pijul/config", True), ("_darcs/prefs", True), ("sub/HEAD", True),
    ("sub/commondir", True), ("/.git/info/*", True), ("git/config", False), ("a/objects", False), (".gitignore", False),
    ("HEAD/x", False),
])
def test_a_path_names_a_repository(path: str, expected: bool) -> None:
    assert expected == names_repository(path)


@pytest.mark.parametrize(("name", "there", "expected"), [
    ("config", ("HEAD", "objects", "refs"), True), ("refs", ("HEAD", "objects"), True), ("objects", ("HEAD",), True),
    ("commondir", ("HEAD",), True), ("config", ("HEAD", "objects"), False), ("refs", ("objects",), False),
    ("x", (), False), ("HEAD", ("objects", "refs"), True),
])
def test_a_name_makes_a_repository(name: str, there: tuple[str, ...], expected: bool) -> None:
    assert expected == makes_repository(name, there)


def test_what_is_obeyed_in_a_repository() -> None:
    assert {"config", "config.worktree", "hooks", "info/attributes", "modules", "commondir"} <= set(INSIDE[""])
    assert "hgrc" in INSIDE[".hg"]
    assert "rebase-merge" not in INSIDE[".git"]  # a rebase may be under way
