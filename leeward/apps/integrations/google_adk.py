"""
Live sandboxes for agents of Google's Agent Development Kit: an environment, and an executor of code.

Runs in:   anybody's program; needs the extra `google-adk`.

    from google.adk.agents import LlmAgent
    from google.adk.tools.environment import EnvironmentToolset
    from leeward.apps.integrations.google_adk import LeewardAdkEnvironment

    LlmAgent(name="worker", model=model, tools=[EnvironmentToolset(environment=LeewardAdkEnvironment(memory="1G"))])
"""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Any

from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from google.adk.environment import BaseEnvironment, ExecutionResult
from pydantic import Field

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.blocking import Client
from leeward.errors import SandboxOver
from leeward.spec.outcome import Outcome

_HOME = Path("/workspace")


class LeewardAdkEnvironment(BaseEnvironment):
    """
    An environment in a live sandbox of its own, from `initialize` until `close`.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, **options: Any) -> None:
        self._options: dict[str, Any] = {"profile": "workdir", "held": True, **options}
        self._box: AsyncSandbox | None = None

    @property
    def working_dir(self) -> Path:
        """The folder in which commands start."""
        return _HOME

    async def initialize(self) -> None:
        """Open the sandbox."""
        if self._box is None:
            self._box = AsyncSandbox(**self._options)
            await self._box.id()
            self.is_initialized = True

    async def close(self) -> None:
        """End the sandbox, with all that runs in it."""
        box, self._box, self.is_initialized = self._box, None, False
        if box is not None:
            await box.close()

    def _opened(self) -> AsyncSandbox:
        if self._box is None:
            raise SandboxOver("the environment wasn't initialized, or was closed", "killed")
        return self._box

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run a line by bash; SandboxOver if the sandbox has ended."""
        limits = {} if timeout is None else {"timeout": timeout}
        result = await self._opened().run(["bash", "-c", command], **limits)  # type: ignore[arg-type]  # one key, or none
        return ExecutionResult(exit_code=result.exit_code, stdout=result.stdout_text, stderr=result.stderr_text,
                               timed_out=result.outcome is Outcome.TIMED_OUT)

    async def read_file(self, path: Path) -> bytes:
        """The content of a file."""
        return await self._opened().files.read(str(path))

    async def write_file(self, path: Path, content: str | bytes) -> None:
        """Write a file, with the folders that lead to it."""
        await self._opened().files.write(str(path), content)


class LeewardAdkCodeExecutor(BaseCodeExecutor):
    """
    An executor whose every block of Python is a job of its own.

    Attributes:
        options: of leeward.Client.execute.
    """

    options: dict[str, Any] = Field(default_factory=dict)

    def execute_code(self, invocation_context: Any, code_execution_input: CodeExecutionInput) -> CodeExecutionResult:
        """Run a block, with its input files; files that it has written in its folder are the output's."""
        given = {file.name: file.content.encode() if isinstance(file.content, str) else file.content
                 for file in code_execution_input.input_files}
        with Client() as client:
            result = client.execute(code_execution_input.code, **{"files": given, "collect": ["*"], **self.options})
        made = [File(name=name, content=content, mime_type=mimetypes.guess_type(name)[0] or "application/octet-stream")
                for name, content in result.files.items() if given.get(name) != content]
        hint = f"\n[{result.outcome}]" if result.outcome not in (Outcome.FINISHED, Outcome.RAISED) else ""
        return CodeExecutionResult(stdout=result.stdout_text, stderr=result.stderr_text + hint, output_files=made)
