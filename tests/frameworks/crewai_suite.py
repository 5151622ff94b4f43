"""Tools for crewAI's agents, and its agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import page
import pytest
from crewai.llms.base_llm import BaseLLM

import leeward
from leeward.apps.integrations.crewai import PythonTool, ShellTool, sandbox_tools


@pytest.fixture
def box() -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(env={"GIVEN": "42"}, timeout=2) as made:
        yield made


def test_lines(box: leeward.Sandbox) -> None:
    shell = ShellTool(box)
    assert "42\n[stderr]:\nerr\n[Exit code: 3]" == shell.run(command="echo $GIVEN; echo err >&2; exit 3")
    assert "[Timed out" in shell.run(command="sleep 60")


def test_python(box: leeward.Sandbox) -> None:
    python = PythonTool(box)
    assert "[No output]" == python.run(code="x = 42")
    assert "42" == python.run(code="x")
    assert "ZeroDivisionError" in python.run(code="1 / 0")


def test_the_end(box: leeward.Sandbox) -> None:
    shell, python = sandbox_tools(box)
    shell.run(command="true")
    box.close()
    for tool, given in ((shell, {"command": "true"}), (python, {"code": "1"})):
        with pytest.raises(leeward.SandboxOver):
            tool.run(**given)


class Scripted(BaseLLM):
    """A model that calls a tool once, and then repeats what that said."""

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        said = str(messages)
        if "Observation: 42" in said:
            return "Thought: I now know\nFinal Answer: it is 42"
        return 'Thought: I run it\nAction: run_shell\nAction Input: {"command": "echo $((6 * 7))"}'

    def supports_function_calling(self) -> bool:
        return False


def test_the_page() -> None:
    assert "it is 42" in str(page.run("crewAI", llm=Scripted(model="scripted"))["answer"])
