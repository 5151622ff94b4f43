"""A look at a project beside other work: it finds what `hiding_plan` finds, whatever becomes of the process that looks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.agents import project_look
from leeward.agents.errors import SettingsError
from leeward.agents.hiding import FileRules, parse_pattern, rules_of
from leeward.agents.project_look import ProjectLook
from leeward.agents.project_tree import MAX_LEVELS, hiding_plan

RULES = rules_of((parse_pattern("*.pem"), parse_pattern("absent")), ())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    for name in (b".env", b"a/b/.env", b"a/\xff.pem", b"a/code.py", b"new\nline/.envrc"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w"):
            pass
    (tmp_path / "deep/.env").mkdir(parents=True)
    monkeypatch.setattr(project_look, "_FEW", 1)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def looked(project: int, rules: FileRules = RULES) -> ProjectLook:
    return ProjectLook(project, rules, "/shown")


def test_a_child_process_finds_the_same_plan(project: int) -> None:
    look = looked(project)
    assert look._copy is not None
    assert look._copy.copy
    assert hiding_plan(project, RULES, "/shown") == look.plan() == look.plan()
    assert len(look.plan().hidden) == 5
    look.close()


def test_a_small_project_is_scanned_without_a_child_process(project: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_look, "_FEW", 100)
    look = looked(project)
    assert look._copy is None
    assert hiding_plan(project, RULES, "/shown") == look.plan()
    look.close()


def test_a_killed_child_does_not_change_the_plan(project: int) -> None:
    look = looked(project)
    assert look._copy is not None
    os.kill(look._copy.copy, signal.SIGKILL)
    assert hiding_plan(project, RULES, "/shown") == look.plan()
    look.close()


def test_without_a_child_process_the_project_is_scanned_as_well(project: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise BlockingIOError(11, "too many processes")

    monkeypatch.setattr(os, "fork", no_fork)
    assert hiding_plan(project, RULES, "/shown") == looked(project).plan()


def test_an_error_of_the_child_reaches_its_parent(project: int, tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * (MAX_LEVELS + 1))).mkdir(parents=True)
    look = looked(project)
    with pytest.raises(SettingsError, match="folders within each other"):
        look.plan()


def test_an_abandoned_look_leaves_no_process(project: int) -> None:
    look = looked(project)
    assert look._copy is not None
    child = look._copy.copy
    look.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(child, 0)
