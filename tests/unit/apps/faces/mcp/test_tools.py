"""The arguments of the tools of `leeward mcp`, and the end of a call."""

from __future__ import annotations

import threading

import pytest

from leeward.apps.faces.mcp.tools import TOOLS, SandboxTools, ToolCall, WrongArguments
from leeward.client.protecting import Unprotected
from leeward.errors import BadRequest, Cancelled, SandboxOver


@pytest.mark.parametrize(("name", "arguments"), [
    ("none", {}), (None, {}), ([], {}), ("run_shell", {}), ("run_shell", []), ("run_shell", {"command": 1}),
    ("run_shell", {"command": "x", "more": "y"}), ("edit_file", {"path": "x", "old": "y"}),
])
def test_a_call_with_other_arguments_is_refused(name, arguments):
    with pytest.raises(WrongArguments):
        ToolCall(name, arguments)


def test_the_tools_take_what_they_show():
    for tool in TOOLS:
        schema = tool["inputSchema"]
        assert tool["name"] == ToolCall(tool["name"], dict.fromkeys(schema["required"], "x")).name
        assert tool["name"] == ToolCall(tool["name"], dict.fromkeys(schema["properties"], "x")).name


def test_a_call_is_ended_once_and_not_begun_after_that():
    call, ended = ToolCall("run_shell", {"command": "x"}), []
    with call.ended_by(lambda: ended.append(1)):
        call.cancel()
        call.cancel()
    assert [1] == ended

    with pytest.raises(Cancelled), call.ended_by(lambda: ended.append(2)):
        ended.append(3)
    assert [1] == ended


def test_a_call_that_is_over_is_not_ended():
    call, ended = ToolCall("run_shell", {"command": "x"}), []
    with call.ended_by(lambda: ended.append(1)):
        pass
    call.cancel()
    assert [] == ended


def test_a_call_is_over_after_what_ends_it():
    """Else an interrupt, on its way while the code ends, would hit the next call's code."""
    call, order, begun, go = ToolCall("run_python", {"code": "x"}), [], threading.Event(), threading.Event()

    def end():
        begun.set()
        go.wait(10)
        order.append("ended")

    canceller = threading.Thread(target=call.cancel)
    with call.ended_by(end):
        canceller.start()
        assert begun.wait(10)
        threading.Timer(0.05, go.set).start()
    order.append("over")
    canceller.join()
    assert ["ended", "over"] == order


class Files:
    def __init__(self, error):
        self.error = error

    def list(self, _path):
        raise self.error


class Box:
    closed = False

    def __init__(self, error):
        self.files = Files(error)

    def close(self):
        self.closed = True


def test_a_sandbox_that_has_ended_is_replaced_and_another_failure_keeps_it():
    made = []

    def opened():
        made.append(Box(OSError("no") if made else SandboxOver("idle")))
        return made[-1], None

    tools = SandboxTools(opened, 1)
    assert ("idle. Its files and variables are lost; the next call opens a new one.", True) == tools.run(
        ToolCall("list_files", {}))
    assert ("OSError", True) == tools.run(ToolCall("list_files", {}))
    assert ("OSError", True) == tools.run(ToolCall("list_files", {}))
    assert 2 == len(made)

    tools.close()
    assert made[1].closed
    assert ("Cancelled: the server is ending", True) == tools.run(ToolCall("list_files", {}))


class Guard:
    """Finds what it is told to."""

    def __init__(self, found, replaced=False):
        self.found, self.closed, self.replaced = found, False, replaced

    def holds(self):
        return not self.replaced

    def put_away(self, end):
        found, self.found = self.found, []
        if self.replaced:
            end()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self):
        self.closed = True


def test_what_a_call_has_made_and_the_host_would_run_is_told():
    guard = Guard(["a/.envrc"])
    tools = SandboxTools(lambda: (Box(OSError("no")), guard), 1)
    text, failed = tools.run(ToolCall("list_files", {}))
    assert failed
    assert "OSError" in text
    assert "Renamed, since programs on the host would run it" in text
    assert "'a/.envrc'" in text
    assert ("OSError", True) == tools.run(ToolCall("list_files", {}))
    assert not guard.closed
    tools.close()
    assert guard.closed


def test_a_sandbox_whose_settings_cannot_be_put_away_is_ended():
    made, guards = [], [Guard([]), Guard(Unprotected("x can't be put away"))]

    def opened():
        made.append(Box(OSError("no")))
        return made[-1], guards.pop()

    tools = SandboxTools(opened, 1)
    assert "The sandbox was ended: x can't be put away" in tools.run(ToolCall("list_files", {}))[0]
    assert made[0].closed
    assert ("OSError", True) == tools.run(ToolCall("list_files", {}))
    assert 2 == len(made)


def test_a_sandbox_whose_protection_the_host_has_replaced_is_ended_and_another_one_opened():
    made, guards = [], [Guard([]), Guard([".envrc"], replaced=True)]

    def opened():
        made.append(Box(OSError("no")))
        return made[-1], guards.pop()

    tools = SandboxTools(opened, 1)
    text, failed = tools.run(ToolCall("list_files", {}))
    assert failed
    assert "was replaced on the host. Renamed" in text
    assert made[0].closed
    assert ("OSError", True) == tools.run(ToolCall("list_files", {}))
    assert 2 == len(made)


@pytest.mark.parametrize(("kind", "content", "shown"), [
    ("image/png", b"x", True), ("image/svg+xml", b"x", False), ("image/png", "text", False), ("text/html", b"x", False),
    ("image/jpeg", b"x" * (4 << 20), True), ("image/jpeg", b"x" * ((4 << 20) + 1), False),
])
def test_pictures_that_clients_show_come_with_an_answer(kind, content, shown):
    call = ToolCall("run_python", {"code": "x"})
    call.show(kind, content)
    assert ([(kind, content)] if shown else []) == call.images


def test_pictures_of_an_answer_are_bounded():
    call = ToolCall("run_python", {"code": "x"})
    for _ in range(20):
        call.show("image/png", b"x" * (1 << 20))
    assert 4 == len(call.images)
    call = ToolCall("run_python", {"code": "x"})
    for _ in range(20):
        call.show("image/png", b"x")
    assert 8 == len(call.images)


class Listed:
    """A box with a file of *size* bytes, a folder, and more files than are told."""

    def __init__(self, size=3):
        self.files = self
        self._size = size

    def list(self, path):
        assert "/workspace" == path
        return [*(Row(f"f{number:03}", "file") for number in range(300)), Row("folder", "folder")]

    def read(self, path, size):
        return b"x" * min(size, self._size)


class Row:
    def __init__(self, name, kind):
        self.name, self.kind, self.size = name, kind, 1


def test_resources_are_the_files_of_an_open_sandbox():
    tools = SandboxTools(lambda: (Listed(), None), 1)
    assert [] == tools.resources()
    assert b"xxx" == tools.resource("/etc/x")
    assert [f"f{number:03}" for number in range(200)] == [row.name for row in tools.resources()]


def test_a_resource_that_is_too_large_is_refused():
    tools = SandboxTools(lambda: (Listed(10 << 20), None), 1)
    with pytest.raises(BadRequest, match="more than 4194304 bytes"):
        tools.resource("/x")
