"""The search of a folder, whose names are given."""

from __future__ import annotations

from typing import Any

from leeward.spec.obeyed.search import MAX_LEVELS, at_once_among, has_own_content, search


def folder(tree: dict[str, Any]) -> Any:
    def listed(path: str) -> list[tuple[str, bool]]:
        here: Any = tree
        for part in path.split("/") if path else ():
            here = here[part]
        if here is None:
            raise PermissionError
        return [(name, not isinstance(below, str)) for name, below in here.items()]
    return listed


TREE = {"code.py": "", "packages": {"app": {".vscode": {"tasks.json": "", ".envrc": ""}, "Makefile": ""}},
        ".git": {"HEAD": "", "objects": {}, "refs": {}, "config": "", "hooks": {"x": ""}, "index": "",
                 "modules": {"m": {"config": ""}}},
        "bare": {"HEAD": "", "objects": {}, "refs": {}, "config": ""}, "sub": {".git": ""}, ".hg": {"hgrc": ""},
        "node_modules": {"p": {".idea": {}, "q.git": {"HEAD": "", "objects": {}, "refs": {}}}},
        ".foo": {"run.sh": "", ".claude": {"settings.json": ""}}}


def test_the_outermost_names_and_all_repositories() -> None:
    found = search(folder(TREE), 1000)
    assert (".foo", ".git", ".git/config", ".git/hooks", ".git/modules", ".hg", ".hg/hgrc", "node_modules/p/.idea",
            "packages/app/.vscode", "packages/app/Makefile", "sub/.git") == tuple(sorted(found.names))
    assert (".git", ".git/modules/m", ".hg", "bare", "node_modules/p/q.git", "sub/.git") == found.repositories
    assert () == found.unseen


def test_what_runs_at_once_is_found_in_what_does_not() -> None:
    found = search(folder(TREE), 1000, at_once=True, passed=("node_modules",))
    assert (".foo/.claude", ".git", ".git/config", ".git/hooks", ".git/modules", ".hg", ".hg/hgrc",
            "packages/app/.vscode", "sub/.git") == tuple(sorted(found.names))
    assert "node_modules/p/q.git" in found.repositories


def test_what_is_not_looked_at_is_told() -> None:
    assert ("closed",) == search(folder({"closed": None, "a": ""}), 100).unseen
    assert ("a",) == search(folder({"a": {"b": ""}}), 1).unseen
    deep: dict[str, Any] = {}
    for _ in range(MAX_LEVELS + 2):
        deep = {"d": deep}
    assert ("/".join("d" * (MAX_LEVELS + 1)),) == search(folder(deep), 1000).unseen


def test_a_folder_with_names_of_its_own() -> None:
    assert has_own_content(".vscode")
    assert has_own_content("a/.foo")
    assert not has_own_content(".venv")
    assert not has_own_content(".cache")
    assert not has_own_content("a/.git")


def test_what_runs_at_once_among_changes() -> None:
    """Of a repository its settings and hooks, and not what a commit writes."""
    told = [".git/config", ".git/hooks/pre-commit", "bare/config", "app/.vscode", "sub/.git"]
    others = ["app/.vscode/tasks.json", "a.py", ".git", ".git/HEAD", ".git/objects/aa", ".git/refs/heads/x", "bare/HEAD",
              "bare/objects/x", "bare/refs/y", "Makefile", "app"]
    assert sorted(told) == at_once_among([*others, *told])
    assert [] == at_once_among([])
    assert ["config"] == at_once_among(["HEAD", "objects", "refs", "config"])
