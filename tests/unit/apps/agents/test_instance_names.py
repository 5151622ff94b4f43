"""Names of instances: readable, safe in a path, and different for paths that read alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.instance_names import (
    HASHED,
    MAX_AT_ONCE,
    SHOWN,
    instance_name,
    is_agent_name,
    is_instance_name,
    names_of,
)


def test_names_that_read_alike_differ():
    names = {instance_name(b"/home/me/" + name, "claude") for name in (b"my_project", b"myproject", b"MyProject",
                                                                       b"my.project", b"my-project", b"my\nproject")}

    assert 6 == len(names)


@pytest.mark.parametrize(("path", "begins"), [
    (b"/home/me/my_project", "home-me-my-project-claude-"),
    (b"/", "root-claude-"),
    (b"/\xff\xfe", "root-claude-"),
    ("/höme/ß".encode(), "h-me-claude-"),
    (b"/home/somebody/with/a/rather/long/path/to/project", "with-a-rather-long-path-to-project-claude-"),
    (b"/" + b"x" * 300, "x" * SHOWN + "-claude-"),
    (b"/-/--x--", "x-claude-"),
])
def test_a_name_shows_the_path_and_the_agent(path, begins):
    name = instance_name(path, "claude")

    assert name.startswith(begins)
    assert len(begins) + HASHED == len(name)


def test_the_name_of_a_path_stays():
    assert instance_name(b"/a", "shell") == instance_name(b"/a", "shell")


def test_several_of_one_project_differ():
    names = list(names_of(b"/home/me/p", "codex"))

    assert MAX_AT_ONCE == len(set(names))
    assert instance_name(b"/home/me/p", "codex") == names[0]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_path_has_a_name_that_a_file_can_have(one, other):
    name = instance_name(one, "a1")

    assert is_instance_name(name)
    assert len(name) < 120
    assert (one == other) == (name == instance_name(other, "a1"))


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a/b", "..", "a.b", "a_b", "x" * 33, "a\n"])
def test_no_name_of_an_agent(text):
    assert not is_agent_name(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a\n", "x" * 121, "A"])
def test_no_name_of_an_instance(text):
    assert not is_instance_name(text)
