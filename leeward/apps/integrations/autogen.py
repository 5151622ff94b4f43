"""
A live sandbox as a code executor of AutoGen.

Runs in:   anybody's program; needs the extra `autogen`.

    from autogen_agentchat.agents import CodeExecutorAgent
    from leeward.apps.integrations.autogen import LeewardCodeExecutor

    async with LeewardCodeExecutor(memory="1G") as executor:
        agent = CodeExecutorAgent("worker", code_executor=executor)
"""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel, Field

from leeward.client.aio_process import AsyncKernel
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.model_text import cut, text_of
from leeward.errors import SessionOver
from leeward.spec.outcome import Outcome, Result

#: The languages of blocks: those for a kernel, and those for the shell.
_PYTHON, _SHELL = ("python", "py", ""), ("sh", "bash", "shell")


class LeewardCodeExecutorConfig(BaseModel):
    """
    What an executor is made of again.

    Attributes:
        sandbox: options of leeward.Sandbox.
    """

    sandbox: dict[str, Any] = Field(default_factory=dict)


class LeewardCodeExecutor(CodeExecutor, Component[LeewardCodeExecutorConfig]):
    """
    An executor of Python, whose variables stay, and of lines for the shell, in a live sandbox of its own. A cancelled run
    is killed.

    Keyword Args: those of leeward.Sandbox.
    """

    component_config_schema = LeewardCodeExecutorConfig
    component_provider_override = "leeward.apps.integrations.autogen.LeewardCodeExecutor"

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._box: AsyncSandbox | None = None
        self._kernel: AsyncKernel | None = None

    async def start(self) -> None:
        """Open the sandbox."""
        if self._box is None:
            self._box = AsyncSandbox(**{"held": True, **self._options})

    async def stop(self) -> None:
        """End the sandbox, with all that runs in it."""
        box, self._box, self._kernel = self._box, None, None
        if box is not None:
            await box.close()

    async def restart(self) -> None:
        """A new sandbox."""
        await self.stop()
        await self.start()

    async def execute_code_blocks(self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken) -> CodeResult:
        """
        Run blocks until one fails; the result has the output of those that ran, and the last one's exit code: 124 after
        the time limit. After code that has ended the kernel the next block of Python fails, and further ones have a new one.

        Raises:
            ValueError: a block is in another language.
            DaemonError: the sandbox has ended, among others.
        """
        running = asyncio.ensure_future(self._run(code_blocks))
        cancellation_token.link_future(running)
        return await running

    async def _run(self, blocks: list[CodeBlock]) -> CodeResult:
        await self.start()
        said, code = [], 0
        for block in blocks:
            result = await self._one(block)
            said.append(text_of(result))
            code = result.exit_code
            if code:
                break
        return CodeResult(exit_code=code, output=cut("\n".join(said)))

    async def _one(self, block: CodeBlock) -> Result:
        assert self._box is not None
        if block.language.lower() in _SHELL:
            return await self._box.shell(block.code)
        if block.language.lower() not in _PYTHON:
            raise ValueError(f"a sandbox runs Python and lines of the shell, not {block.language!r:.40}")
        if self._kernel is None:
            self._kernel = await self._box.kernel()
        try:
            return await self._kernel.execute(block.code)
        except SessionOver as error:
            self._kernel = None
            return Result(b"", f"{error}; all variables are lost".encode(), 1, Outcome.FINISHED)

    def _to_config(self) -> LeewardCodeExecutorConfig:
        return LeewardCodeExecutorConfig(sandbox=self._options)

    @classmethod
    def _from_config(cls, config: LeewardCodeExecutorConfig) -> LeewardCodeExecutor:
        return cls(**config.sandbox)
