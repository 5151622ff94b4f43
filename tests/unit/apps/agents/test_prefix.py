"""Lines of an agent that runs outside: whose they are, and where the next one starts."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.prefix import (
    AgentSession,
    folder_file,
    is_alive,
    parse_key,
    parse_stat,
    reported_folder,
    session_of,
)


def stat_of(pid, name, parent, start):
    return f"{pid} ({name}) S {parent} 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 1 2 3\n"


TREE = {
    1: stat_of(1, "init", 0, 1), 10: stat_of(10, "bash", 1, 100), 20: stat_of(20, "claude", 10, 200),
    30: stat_of(30, "bash", 20, 300), 40: stat_of(40, "sh", 30, 400), 50: stat_of(50, "we) (ird", 20, 500),
    60: stat_of(60, "bash", 61, 600), 61: stat_of(61, "bash", 60, 601), 70: stat_of(70, "bash", 999, 700),
}


def stat(pid):
    try:
        return TREE[pid]
    except KeyError:
        raise FileNotFoundError(pid) from None


@pytest.mark.parametrize(("pid", "session"), [
    (40, AgentSession(20, 200)), (30, AgentSession(20, 200)), (20, AgentSession(20, 200)), (50, AgentSession(50, 500)),
    (10, AgentSession(10, 100)), (70, AgentSession(70, 700)), (999, AgentSession(999, 0)),
])
def test_the_agent_is_the_nearest_that_is_no_shell(pid, session):
    assert session == session_of(pid, stat)


def test_a_circle_of_shells_ends():
    assert session_of(60, stat).pid in (60, 61)


def test_a_later_process_of_the_same_number_is_another():
    assert is_alive(AgentSession(20, 200), stat)
    assert not is_alive(AgentSession(20, 201), stat)
    assert not is_alive(AgentSession(999, 1), stat)


def test_the_kernel_is_read_as_it_writes():
    def real(pid):
        with open(f"/proc/{pid}/stat") as file:
            return file.read()

    name, parent, start = parse_stat(real(os.getpid()))
    assert name
    assert parent == os.getppid()
    assert is_alive(AgentSession(os.getpid(), start), real)


@given(st.integers(1, 1 << 32), st.integers(0, 1 << 62))
def test_a_key_is_read_as_it_was_written(pid, start):
    session = AgentSession(pid, start)

    assert session == parse_key(session.key)


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "0-1", "1-1-1", "a-b", "1-1\n", "\u0661-1"])
def test_a_malformed_key_is_none(text):
    assert parse_key(text) is None


TEMPORARY = ("/tmp", "/var/tmp/my tmp")


@pytest.mark.parametrize(("line", "file"), [
    ("x && pwd -P >| /tmp/claude-1a2b-cwd", "/tmp/claude-1a2b-cwd"),
    ("x && pwd -P >| '/var/tmp/my tmp/claude-1a2b-cwd'", "/var/tmp/my tmp/claude-1a2b-cwd"),
    ("x && pwd -P >| /tmp/claude-1a2b-cwd\n", ""),
    ("x && pwd -P >| /tmp/claude-1a2b-cwd; y", ""),
    ("eval 'x && pwd -P >| /tmp/claude-1a2b-cwd'", ""),
    ("x && pwd -P >| /tmp/x/claude-1a2b-cwd", ""),
    ("x && pwd -P >| /tmp/../etc/claude-1a2b-cwd", ""),
    ("x && pwd -P >| /etc/passwd", ""),
    ("x && pwd -P >| claude-1a2b-cwd", ""),
    ("x && pwd -P >| /tmp/claude--cwd", ""),
    ("x && pwd -P >| '/tmp/claude-1-cwd' '/tmp/claude-2-cwd'", ""),
    ("x && pwd -P >| $(x)", ""),
    ("echo hello", ""),
    ("", ""),
])
def test_the_file_for_the_folder(line, file):
    assert file == folder_file(line, TEMPORARY)


@pytest.mark.parametrize(("content", "told"), [
    (b"/p\n", "/p"), (b"/p/x y\n", "/p/x y"), (b"/p/x", "/p/x"), (b"/q\n", ""), (b"/pq\n", ""), (b"/p/../etc\n", ""),
    (b"/p/\n", ""), (b"", ""), (b"p\n", ""), (b"/p\n/q\n", ""), (b"/p/\0\n", ""), (b"/p/\xff\n", "/p/\udcff"),
    (b"//p\n", ""),
])
def test_an_agent_goes_on_only_in_a_folder_that_both_see(content, told):
    assert told == reported_folder(content, ("/p",))


@given(st.binary(max_size=40))
def test_any_content_is_a_folder_below_or_none(content):
    told = reported_folder(b"/p" + content, ("/p",))

    assert told == "" or os.path.commonpath([told, "/p"]) == "/p"
