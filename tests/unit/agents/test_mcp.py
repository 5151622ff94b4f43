"""
Messages of the Model Context Protocol, and the arguments of its tools.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.agents import mcp
from leeward.agents.mcp_tools import MOST, TOOLS, ToolCall, WrongArguments, cut
from leeward.errors import Cancelled


def line(**fields):
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


def test_a_request_is_read():
    assert mcp.McpMessage("ping", 7) == mcp.parse_message(line(id=7, method="ping"))
    assert mcp.McpMessage("x", "a", {"b": 1}) == mcp.parse_message(line(id="a", method="x", params={"b": 1}))


def test_a_notification_has_no_id():
    assert mcp.McpMessage("notifications/initialized") == mcp.parse_message(line(method="notifications/initialized"))


def test_an_answer_is_passed_over():
    assert mcp.parse_message(line(id=1, result={})) is None


@pytest.mark.parametrize(("content", "code", "id"), [
    (b"", mcp.PARSE_ERROR, None), (b"{", mcp.PARSE_ERROR, None), (b"[" * 100_000, mcp.PARSE_ERROR, None),
    (b"\xff", mcp.PARSE_ERROR, None), (b"[]", mcp.INVALID_REQUEST, None), (b"1", mcp.INVALID_REQUEST, None),
    (b"{}", mcp.INVALID_REQUEST, None), (line(id=None, method="x"), mcp.INVALID_REQUEST, None),
    (line(id=1.5, method="x"), mcp.INVALID_REQUEST, None), (line(id=True, method="x"), mcp.INVALID_REQUEST, None),
    (line(id=[1], method="x"), mcp.INVALID_REQUEST, None), (line(id="\ud800", method="x"), mcp.INVALID_REQUEST, None),
    (line(id="x" * 1001, method="x"), mcp.INVALID_REQUEST, None),
    (line(id=1 << 63, method="x"), mcp.INVALID_REQUEST, None),
    (b'{"id": 1, "method": "x"}', mcp.INVALID_REQUEST, 1), (line(id=1, method=1), mcp.INVALID_REQUEST, 1),
    (line(id=1, method="x", params=[]), mcp.INVALID_PARAMS, 1),
])
def test_a_malformed_message_has_a_code(content, code, id):
    with pytest.raises(mcp.MalformedMessage) as caught:
        mcp.parse_message(content)

    assert (code, id) == (caught.value.code, caught.value.id)


@given(st.text(), st.text())
def test_an_answer_is_one_line(id, text):
    made = mcp.result_of(id, {"text": text})

    assert made.endswith(b"\n")
    assert 1 == made.count(b"\n")
    assert {"jsonrpc": "2.0", "id": id, "result": {"text": text}} == json.loads(made)


@pytest.mark.parametrize(("asked", "revision"), [
    ("2025-03-26", "2025-03-26"), ("1999-01-01", mcp.REVISIONS[0]), (None, mcp.REVISIONS[0]), ([], mcp.REVISIONS[0]),
])
def test_a_revision_that_both_know(asked, revision):
    assert revision == mcp.revision_of(asked)


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
    call.ended_by(lambda: ended.append(1))
    end = call.cancel()
    assert end is not None
    end()
    assert call.cancel() is None
    assert [1] == ended

    call = ToolCall("run_shell", {"command": "x"})
    assert call.cancel() is None
    with pytest.raises(Cancelled):
        call.ended_by(lambda: ended.append(2))
    assert [1, 2] == ended


def test_a_long_text_loses_its_middle():
    assert "x" * MOST == cut("x" * MOST)
    text = cut("a" * MOST + "b" * MOST)
    assert text.startswith("a" * (MOST // 2) + f"\n[{MOST} characters cut]\n")
    assert text.endswith("b" * (MOST // 2))
