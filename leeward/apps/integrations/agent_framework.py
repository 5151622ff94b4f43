"""
A live sandbox as a shell for agents of Microsoft's Agent Framework.

Runs in:   anybody's program; needs the extra `agent-framework`.

    from agent_framework import Agent
    from leeward.apps.integrations.agent_framework import LeewardShell

    async with LeewardShell(memory="1G") as shell:
        await Agent(client, tools=[shell.as_function()]).run("What is 6 * 7?")
"""

from __future__ import annotations

from typing import Any

from agent_framework import FunctionTool, tool
from agent_framework_tools.shell import ShellExecutionError, ShellResult

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.errors import DaemonError
from leeward.spec.outcome import Outcome

#: By which clients know a tool that runs lines, and give it to models that were taught such a one.
_KIND = "shell"
_ABOUT = "Run a line by bash in a sandbox. Files stay; the folder and variables of the shell don't."


class LeewardShell:
    """
    A shell executor with a live sandbox of its own, until `close`. A line whose task is cancelled is killed.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, **options: Any) -> None:
        self._box = AsyncSandbox(**{"profile": "workdir", "held": True, **options})

    async def __aenter__(self) -> LeewardShell:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the sandbox."""
        await self._box.id()

    async def close(self) -> None:
        """End the sandbox, with all that runs in it."""
        await self._box.close()

    async def run(self, command: str, *, timeout: float | None = None) -> ShellResult:
        """Run a line by bash; ShellExecutionError if the sandbox has ended."""
        limits = {} if timeout is None else {"timeout": timeout}
        try:
            result = await self._box.run(["bash", "-c", command], **limits)  # type: ignore[arg-type]  # one key, or none
        except (DaemonError, UnicodeError) as error:
            raise ShellExecutionError(str(error)) from error
        return ShellResult(result.stdout_text, result.stderr_text, result.exit_code, round(1000 * result.duration),
                           truncated=bool(result.stdout_omitted or result.stderr_omitted),
                           timed_out=result.outcome is Outcome.TIMED_OUT)

    def as_function(self, *, name: str = "run_shell", description: str = _ABOUT) -> FunctionTool:
        """The tool for an agent, which asks nobody: what it runs is confined."""
        async def run_shell(command: str) -> str:
            return (await self.run(command)).format_for_model()

        return tool(func=run_shell, name=name, description=description, kind=_KIND, approval_mode="never_require")
