"""What `./dev hook` has git check, and the order of `./dev release`: with programs in the place of the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from kit.features import ROOT
from kit.from_file import module_at

#: Writes down how it was called; fails where a file of its name says so.
STAND_IN = """#!/bin/sh
echo "${0##*/} $*" >>"$PWD/calls"
! [ -e "fail-${0##*/}" ]
"""
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is missing")


def git(folder: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *AUTHOR, *words], cwd=folder, text=True, capture_output=True, check=check, env={
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")}, "HOME": str(folder)})


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STAND_IN)
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the task runner in it."""
    git(tmp_path, "init", "-q", "-b", "main")
    shutil.copy(ROOT / "dev", tmp_path)
    (tmp_path / ".gitignore").write_text(".venv*/\n/build/\n/dist/\ncalls\n")
    for name in (".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/python", ".venv-lint/bin/lint-imports"):
        program(tmp_path / name)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "begin")
    return tmp_path


@pytest.mark.parametrize("failing", [None, "ruff", "mypy", "lint-imports", "python"])
def test_the_hook_checks_what_is_committed(tree: Path, failing: str | None) -> None:
    subprocess.run(["./dev", "hook"], cwd=tree, check=True, capture_output=True)
    for name in ("leeward/a.py", "tests/unit/b.py", "c.txt"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
        git(tree, "add", name)
    (tree / "leeward/not_staged.py").write_text("")
    if failing:
        (tree / f"fail-{failing}").write_text("")
    done = git(tree, "commit", "-m", "more", check=False)

    assert (failing is not None) == bool(done.returncode)
    assert ["ruff check leeward/a.py tests/unit/b.py", "mypy leeward/a.py", "lint-imports "] == [
        line for line in (tree / "calls").read_text().splitlines() if not line.startswith("python")]
    assert ("python packaging/generated.py --check leeward/clients/c packaging/completions packaging/man leeward/clients/node"
            in (tree / "calls").read_text())


def test_another_hook_stays(tree: Path) -> None:
    """And one's own is made anew."""
    hook = tree / ".git/hooks/pre-commit"
    for _ in range(2):
        subprocess.run(["./dev", "hook"], cwd=tree, check=True, capture_output=True)
    hook.write_text("#!/bin/sh\nmine\n")
    done = subprocess.run(["./dev", "hook"], cwd=tree, check=False, capture_output=True, text=True)

    assert 1 == done.returncode
    assert "is there already" in done.stderr
    assert "#!/bin/sh\nmine\n" == hook.read_text()


@pytest.fixture
def release(tree: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, for a tree whose tasks are written down."""
    module = module_at("packaging/release.py")
    monkeypatch.setattr(module, "ROOT", tree)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(tree / "dev")
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## 9.1, 2030-12-31\n\n* new\n\n## 9.0, 2030-01-01\n\n* old\n")
    (tree / "packaging/debian").mkdir(parents=True)
    (tree / "packaging/debian/changelog").write_text("leeward (9.1-1) unstable\n")
    (tree / "dist").mkdir()
    for name in ("leeward-9.1.tar.gz", "leeward-8.0.tar.gz"):
        (tree / "dist" / name).write_text("x")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "release")
    return module


def calls(tree: Path) -> list[str]:
    return (tree / "calls").read_text().splitlines() if (tree / "calls").exists() else []


def test_a_release_goes_on_where_it_ended(release: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """And says what is left for a person."""
    (tree / ".git/info/exclude").write_text("fail-dev\n")
    monkeypatch.setattr(release, "STEPS", release.STEPS[1:])
    (tree / "fail-dev").write_text("")
    with pytest.raises(release.Stop, match=r"\./dev lint has failed"):
        release.release("9.1")
    (tree / "fail-dev").unlink()
    release.release("9.1")
    release.release("9.1")

    assert [f"dev {step}" for step in ("lint", *release.STEPS)] == calls(tree)
    assert "* new\n" == (tree / "dist/NOTES.md").read_text()
    assert ["leeward-9.1.tar.gz"] == [line.split()[1] for line in (tree / "dist/SHA256SUMS").read_text().splitlines()]
    assert f"git tag -s v9.1 {git(tree, 'rev-parse', 'HEAD').stdout}" in capsys.readouterr().out


@pytest.mark.parametrize(("file", "text", "said"), [
    ("CHANGELOG.md", "## Unreleased\n", "no section of 9.1 with a date"),
    ("packaging/debian/changelog", "leeward (9.0-1)\n", "doesn't begin with 9.1"),
    ("new.py", "", "have to be committed first:\n.. new.py")], ids=["changelog", "debian", "changes"])
def test_a_release_does_not_begin(release: ModuleType, tree: Path, file: str, text: str, said: str) -> None:
    """Where it would be of something else."""
    (tree / file).write_text(text)
    with pytest.raises(release.Stop, match=said):
        release.release("9.1")

    assert [] == calls(tree)


#: The task runner, of which the check of kernels fails.
STALE = STAND_IN.replace("! [ -e", "[ \"$*\" != 'vm --check' ] && ! [ -e")


def test_a_release_needs_kernels_that_ran_its_sources(release: ModuleType, tree: Path) -> None:
    """It says at once what to do, and doesn't boot machines for hours by itself."""
    (tree / "dev").write_text(STALE)
    git(tree, "commit", "-qam", "runs that are too old")
    with pytest.raises(release.Stop, match=r"rows of kernels above .* \./dev vm --all --record; then commit"):
        release.release("9.1")

    assert ["dev vm --check"] == calls(tree)


@pytest.mark.parametrize("stale", [False, True])
def test_a_rehearsal_takes_every_step_and_describes_nothing(release: ModuleType, tree: Path, stale: bool,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "CHANGELOG.md").write_text("## 9.1, unreleased\n")
    if stale:
        (tree / "dev").write_text(STALE)
    git(tree, "commit", "-qam", "no release yet")
    if stale:
        with pytest.raises(release.Stop, match="all else has passed; the rows of kernels above"):
            release.release("9.1", rehearsed=True)
    else:
        release.release("9.1", rehearsed=True)

    assert [f"dev {step}" for step in (*release.STEPS, *release.STEPS[:stale])] == calls(tree)
    assert not (tree / "dist/NOTES.md").exists()
    assert stale != ("was rehearsed" in capsys.readouterr().out)


def test_only_roots_is_whole(release: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(release.Stop, match="only root's"):
        release.release("9.1")
    assert [] == calls(tree)
