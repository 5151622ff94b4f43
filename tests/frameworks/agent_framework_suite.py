"""A shell for Microsoft's Agent Framework, and its agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import page
import pytest
from agent_framework import BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message
from agent_framework_tools.shell import ShellExecutionError, ShellExecutor

from leeward.apps.integrations.agent_framework import LeewardShell


@pytest.fixture
async def shell() -> AsyncIterator[LeewardShell]:
    async with LeewardShell(env={"GIVEN": "42"}) as made:
        yield made


async def test_lines(shell: LeewardShell) -> None:
    checked: ShellExecutor = shell
    done = await checked.run("echo $GIVEN; pwd; echo err >&2; exit 3")
    assert ("42\n/workspace\n", "err\n", 3, False) == (done.stdout, done.stderr, done.exit_code, done.timed_out)
    late = await shell.run("echo begun; sleep 60", timeout=0.5)
    assert ("begun\n", True) == (late.stdout, late.timed_out)


async def test_output_is_bounded() -> None:
    async with LeewardShell(output="64K") as shell:
        done = await shell.run("head -c 10000000 /dev/zero")
    assert done.truncated
    assert len(done.stdout) < 100_000


async def test_a_cancelled_line_is_killed(shell: LeewardShell) -> None:
    running = asyncio.create_task(shell.run("touch begun; sleep 60"))
    while (await shell.run("test -e begun")).exit_code:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "0\n" == (await shell.run("pgrep -c -r S sleep || :")).stdout  # S: no killed one


async def test_the_end(shell: LeewardShell) -> None:
    with pytest.raises(ShellExecutionError):
        await shell.run("\ud800")
    await shell.close()
    with pytest.raises(ShellExecutionError):
        await shell.run("true")


class Scripted(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc]  # as its own clients are made
    """A model that calls the shell once, and then repeats what that said."""

    async def _inner_get_response(self, *, messages: Any, **_: Any) -> ChatResponse:
        results = [each.result for message in messages for each in message.contents if each.type == "function_result"]
        content = (Content.from_text(str(results)) if results else
                   Content.from_function_call("1", "run_shell", arguments={"command": "echo $((6 * 7))"}))
        return ChatResponse(messages=[Message("assistant", [content])])


def test_the_page() -> None:
    assert "42" in str(page.run("Microsoft's Agent Framework", client=Scripted())["answer"])
