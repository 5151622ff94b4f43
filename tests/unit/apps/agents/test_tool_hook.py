"""The hook before an agent's tools: what it rewrites, refuses and leaves."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.hiding import rules_of
from leeward.apps.agents.tool_hook import MAX_CALL, Blocked, decide_tool

PREFIX = "/usr/bin/leeward-shell-prefix"
RULES = rules_of([], [])


def call(tool, given, **more):
    return json.dumps({"session_id": "x", "hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": given,
                       **more}).encode()


def decide(content, project="/p", **options):
    found = decide_tool(content, PREFIX, str(project), RULES, **options)
    return json.loads(found)["hookSpecificOutput"] if found else None


@pytest.mark.parametrize("line", ["ls", "echo 'a b' \"$X\"", "a\nb", "cat <<'X'\n'\nX", "'", "x" * 100_000, "é"])
def test_a_line_goes_into_the_sandbox_whole(line):
    answer = decide(call("Bash", {"command": line, "timeout": 5, "description": "d"}))

    assert "PreToolUse" == answer["hookEventName"]
    assert "ask" == answer["permissionDecision"]
    assert {"timeout": 5, "description": "d"}.items() <= answer["updatedInput"].items()
    assert [PREFIX, line] == shlex.split(answer["updatedInput"]["command"])


def test_the_line_of_a_monitor_goes_there_too():
    answer = decide(call("Monitor", {"command": "tail -f x", "persistent": False}))

    assert {"command": f"{PREFIX} 'tail -f x'", "persistent": False} == answer["updatedInput"]


def test_a_line_of_another_shell_is_denied():
    assert "deny" == decide(call("PowerShell", {"command": "ls"}))["permissionDecision"]


def test_a_line_needs_no_other_approval_with_that_option():
    assert "allow" == decide(call("Bash", {"command": "ls"}), approve=True)["permissionDecision"]


def test_a_line_is_wrapped_once():
    once = decide(call("Bash", {"command": "ls"}))["updatedInput"]["command"]

    assert decide(call("Bash", {"command": once})) is None


@pytest.mark.parametrize("line", [f"{PREFIX} ls; evil", f"{PREFIX} ls && evil", f"{PREFIX} 'ls' $(evil)",
                                  f"x={PREFIX} evil", f"{PREFIX} ls\nevil", f'{PREFIX} "$(evil)"', f"{PREFIX}\nevil",
                                  f"{PREFIX} `evil`", f"{PREFIX} $evil", f"{PREFIX} *", f"{PREFIX} a;evil",
                                  f"{PREFIX} a>/etc/x", f"{PREFIX}  ls", f" {PREFIX} ls", f"{PREFIX} ls "])
def test_a_line_that_looks_wrapped_is_wrapped(line):
    """Two words are what the wrapping makes: any other is wrapped, once more if need be."""
    assert [PREFIX, line] == shlex.split(decide(call("Bash", {"command": line}))["updatedInput"]["command"])


@pytest.fixture
def project(tmp_path):
    (tmp_path / "p" / "sub").mkdir(parents=True)
    (tmp_path / "p" / ".env").write_text("x")
    (tmp_path / "p" / "link").symlink_to(".env")
    (tmp_path / "p" / "out").symlink_to(tmp_path)
    return tmp_path / "p"


def test_a_tracked_file_may_be_read_until_it_is_changed(project):
    for argv in (["init", "-q"], ["add", ".env"]):
        subprocess.run(["git", *argv], cwd=project, check=True)
    assert decide(call("Read", {"file_path": ".env"}, cwd=str(project)), project) is None
    (project / ".env").write_text("y")
    assert "deny" == decide(call("Read", {"file_path": ".env"}, cwd=str(project)), project)["permissionDecision"]


@pytest.mark.parametrize(("tool", "path", "decision"), [
    ("Write", "new", None), ("Write", "sub/new", None), ("Edit", ".env", "deny"), ("Read", ".env", "deny"),
    ("Read", "sub/../.env", "deny"), ("Read", "link", "deny"), ("Read", "sub", None), ("Write", "../x", "deny"),
    ("Write", "/etc/passwd", "deny"), ("Write", "out/x", "deny"), ("Edit", "sub/../../x", "deny"),
    ("Read", "/etc/passwd", None), ("MultiEdit", ".env.local", "deny"),
])
def test_file_tools_are_kept_to_the_project(project, tool, path, decision):
    answer = decide(call(tool, {"file_path": path}, cwd=str(project)), project)

    assert decision == (answer and answer["permissionDecision"])


@pytest.mark.parametrize(("given", "decision"), [
    ({}, "deny"), ({"path": "."}, "deny"), ({"path": "sub"}, None), ({"path": ".env"}, "deny"),
    ({"path": ".."}, "deny"),
])
def test_a_search_does_not_read_hidden_files(project, given, decision):
    answer = decide(call("Grep", {"pattern": "x", **given}, cwd=str(project)), project)

    assert decision == (answer and answer["permissionDecision"])
    assert decide(call("Glob", {"pattern": "*"}, cwd=str(project)), project) is None


def test_tools_that_name_no_file_are_left():
    assert decide(call("WebFetch", {"url": "https://example.org"})) is None
    assert decide(call("Glob", {"pattern": "*"})) is None


@pytest.mark.parametrize("content", [
    b"", b"{", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, call("Bash", {}), call("Bash", {"command": ""}),
    call("Bash", {"command": 1}), call("Bash", {"command": "a\0b"}), call("Write", {}), call("Write", {"file_path": 1}),
    call("Bash", {"command": "\ud800"}), call("Bash", {"command": "x" * 131_073}),
    call("Write", {"file_path": "\ud800"}), call("Write", {"file_path": "x/../" * 1000}),
    call("Read", {"file_path": "x"}, cwd="a\0"), call("Write", {"file_path": "x"}, cwd=["/"]),
    call("Bash", {"command": "ls", "x": float("nan")}), json.dumps({"tool_name": 1, "tool_input": {}}).encode(),
    json.dumps({"tool_name": "Bash"}).encode(),
])
def test_a_malformed_call_is_blocked(content):
    with pytest.raises(Blocked):
        decide(content)


def test_a_call_of_any_size_is_blocked():
    with pytest.raises(Blocked, match="more than"):
        decide(b" " * (MAX_CALL + 1))


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                                                  max_size=3), max_leaves=6)


@given(st.binary(max_size=60) | st.tuples(st.sampled_from(["Bash", "Read", "Write", "Glob", "X"]), st.dictionaries(
    st.sampled_from(["command", "file_path", "path"]), VALUES)).map(lambda pair: call(*pair)))
def test_any_call_is_answered_or_blocked(content):
    try:
        found = decide_tool(content, PREFIX, "/p", RULES)
    except Blocked as caught:
        found, said = "", str(caught)
        assert said
    assert not found or json.loads(found)
