"""
A live sandbox as tools of crewAI's agents.

Runs in:   anybody's program; needs the extra `crewai`.

    from crewai import Agent
    from leeward.apps.integrations.crewai import sandbox_tools

    with leeward.Sandbox(memory="1G") as box:
        Agent(role="worker", goal="...", backstory="...", llm=llm, tools=sandbox_tools(box))
"""

from __future__ import annotations

from typing import Any

from crewai.tools import BaseTool
from pydantic import ConfigDict, PrivateAttr

from leeward.client.model_text import cut, text_of
from leeward.client.process import Kernel
from leeward.client.sandbox import Sandbox
from leeward.errors import SessionOver


class _SandboxTool(BaseTool):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    _box: Sandbox = PrivateAttr()

    def __init__(self, box: Sandbox, **fields: Any) -> None:
        super().__init__(**fields)
        self._box = box


class ShellTool(_SandboxTool):
    """Runs a line."""

    name: str = "run_shell"
    description: str = "Run a line by bash in a sandbox. Files stay; the folder and variables of the shell don't."

    def _run(self, command: str) -> str:
        return cut(text_of(self._box.run(["bash", "-c", command])))


class PythonTool(_SandboxTool):
    """Runs Python, whose variables stay."""

    name: str = "run_python"
    description: str = "Run Python in a sandbox. Variables stay; the last expression's value is printed."
    _kernel: Kernel | None = PrivateAttr(None)

    def _run(self, code: str) -> str:
        if self._kernel is None:
            self._kernel = self._box.kernel()
        try:
            result = self._kernel.execute(code)
        except SessionOver:
            self._kernel = None
            raise
        return cut(text_of(result))


def sandbox_tools(box: Sandbox) -> list[BaseTool]:
    """
    Tools for lines and for Python in *box*, which the caller closes. What fails there is their answer; SandboxOver, if the
    sandbox has ended, is told to the agent by crewAI.
    """
    return [ShellTool(box), PythonTool(box)]
