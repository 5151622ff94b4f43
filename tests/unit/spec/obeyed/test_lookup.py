"""Names that programs on the host obey, as these programs and their file systems read them."""

from __future__ import annotations

import pytest

from leeward.spec.obeyed.lookup import DOTTED, among, home_settings, obeyed_by, plain
from leeward.spec.obeyed.table import AT_ONCE, HARMLESS, ROWS, WHEN_ASKED


@pytest.mark.parametrize(("path", "kind"), [
    (".envrc", AT_ONCE), ("sub/.ENVRC", AT_ONCE), ("packages/app/.vscode/tasks.json", AT_ONCE),
    ("a/.cargo/config.toml", WHEN_ASKED), ("claude.md", WHEN_ASKED), (".claude/settings.json", AT_ONCE),
    (".claude/notes", AT_ONCE), ("b/x.code-workspace", AT_ONCE), (".config/mise/conf.d/x", AT_ONCE),
    (".github/hooks/x.json", AT_ONCE), (".github/workflows/x.yml", WHEN_ASKED), (".gitignore", HARMLESS),
    ("eslint.config.mjs", WHEN_ASKED), ("deep/er/vite.config.ts", WHEN_ASKED), ("build.rs", WHEN_ASKED),
    ("Gemfile", WHEN_ASKED), ("Rakefile", WHEN_ASKED), ("a/conftest.py", WHEN_ASKED), ("setup.py", WHEN_ASKED),
    ("noxfile.py", WHEN_ASKED), ("Makefile", WHEN_ASKED), ("GNUmakefile", WHEN_ASKED), ("CMakeLists.txt", WHEN_ASKED),
    ("justfile", WHEN_ASKED), ("package.json", WHEN_ASKED), ("sitecustomize.py", WHEN_ASKED), ("a/b.pth", WHEN_ASKED),
    ("bin/python3", WHEN_ASKED), (".venv/bin/pip", WHEN_ASKED), ("bin/activate.fish", WHEN_ASKED),
    ("gradlew", WHEN_ASKED), ("build.gradle.kts", WHEN_ASKED), ("pom.xml", WHEN_ASKED), ("Cargo.toml", WHEN_ASKED),
    ("go.work", WHEN_ASKED), ("Dockerfile.dev", WHEN_ASKED), ("docker-compose.prod.yml", WHEN_ASKED),
    (".pre-commit-config.yaml", AT_ONCE), ("AGENTS.md", WHEN_ASKED), (".unheard-of/x", WHEN_ASKED),
    ("a/.x", WHEN_ASKED), (".cache/x", HARMLESS), (".cache/.envrc", AT_ONCE), ("_darcs/prefs/defaults", AT_ONCE),
    ("sub/CVS/Root", AT_ONCE), ("_MTN/monotonerc", AT_ONCE), ("package.yaml", WHEN_ASKED), ("BSDmakefile", WHEN_ASKED),
    ("Makefile.toml", WHEN_ASKED), ("Tupfile", WHEN_ASKED), ("docs/conf.py", WHEN_ASKED), ("config.nims", WHEN_ASKED),
    ("bitbucket-pipelines.yml", WHEN_ASKED), ("main.tofu", WHEN_ASKED), ("hatch_build.py", WHEN_ASKED),
])
def test_a_path_is_obeyed(path: str, kind: str) -> None:
    row = obeyed_by(path)
    assert row is not None
    assert kind == row.kind


@pytest.mark.parametrize("path", [
    "code.py", "config.toml", "my.envrc.txt", "x.npmrc", "src/hooks/use.js", "build/x", "python3", "a/objects",
    "cvs/x", "app/conf.py",
    "makefile.py", "x.pth.txt", "~", "a~b", "x:y",
])
def test_a_path_of_the_projects_own_is_not(path: str) -> None:
    assert obeyed_by(path) is None


@pytest.mark.parametrize("name", [
    ".git", ".GIT", ".git ", ".git.", ".git . .", "git~1", "GIT~1", ".git::$INDEX_ALLOCATION", ".g\u200cit", ".gi\ufefft",
    "\u200f.git", ".g\xadit", ".git\ufe0f", ".\U000e0041git", ".gi\u2060t",
])
def test_a_name_that_some_host_takes_for_git(name: str) -> None:
    """As git itself refuses them in a tree."""
    assert ".git" == plain(name)
    assert [name] == [each for each, _ in among([], [name])]


def test_a_name_that_only_looks_like_one() -> None:
    assert ".git" not in map(plain, (".gitx", "git", "agit~1", "git~x", ".g\u00eft"))


def test_names_of_a_folder() -> None:
    assert [(".x", DOTTED)] == among(["a"], ["b", ".x", "c.py"])
    assert ["config.toml"] == [name for name, _ in among(["p", ".mise"], ["x"])] + [
        name for name, _ in among([".jj", "repo"], ["config.toml", "store"])]
    assert [] == among([], [])


def test_settings_of_a_state_folder() -> None:
    assert {"settings.json", "hooks", "CLAUDE.md", "local", "remote-settings.json"} <= set(home_settings(".claude"))
    assert {"config.toml", "packages"} <= set(home_settings(".codex"))
    assert "" in home_settings(".config/opencode")
    assert [] == home_settings(".unheard-of")


def test_every_row_says_who_obeys_it_since_when_and_where_that_is_written() -> None:
    for row in ROWS:
        assert all((row.names, row.who, row.since, row.source)), row
        assert row.kind in (AT_ONCE, WHEN_ASKED, HARMLESS)
        for name in row.names:
            assert all(part and part.count("*") <= 1 for part in name.split("/")), name


def test_every_name_of_the_table_is_found_at_any_depth() -> None:
    for row in ROWS:
        for name in row.names:
            if not name.startswith("~/"):
                found = obeyed_by(f"packages/app/{name.replace('*', 'x')}")
                assert found not in (None, DOTTED), name
