"""
A live sandbox for agents of Strands.

Runs in:   anybody's program; needs the extra `strands`.

    from strands import Agent
    from leeward.apps.integrations.strands import LeewardStrandsSandbox

    with LeewardStrandsSandbox(memory="1G") as box:
        Agent(model, sandbox=box)("What is 6 * 7?")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from strands.sandbox import ExecutionResult, FileInfo, PosixShellSandbox, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.tools.decorator import DecoratedFunctionTool
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.shell import make_shell

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.sandbox import Sandbox
from leeward.spec.outcome import Outcome

_HOME = "/workspace"
#: What a command may write, unless the sandbox's options say so: all of it is kept for the command's result.
_OUTPUT = "1M"


class LeewardStrandsSandbox(PosixShellSandbox):
    """
    A sandbox of an agent's, in a live sandbox of its own, until `close`. A command whose task is cancelled is killed.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, **options: Any) -> None:
        self._own = Sandbox(**{"profile": "workdir", "held": True, **options})
        self._output, self._timeout = options.get("output", _OUTPUT), options.get("timeout")
        self._box: AsyncSandbox | None = None

    def __enter__(self) -> LeewardStrandsSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox, with all that runs in it."""
        self._own.close()

    async def _opened(self) -> AsyncSandbox:
        """The sandbox for an event loop: an agent has a new one for each of its blocking calls."""
        if self._box is None:
            self._box = await AsyncSandbox.attach(self._own.id)
        return self._box

    async def execute_streaming(self, command: str, *, timeout: float | None = None, cwd: str | None = None,
                                env: dict[str, str] | None = None, **kwargs: Any,
                                ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """
        Run a line by bash; its output as it comes, and then its end. SandboxTimeoutError at the time limit, SandboxOver if
        the sandbox has ended.
        """
        limit = self._timeout if timeout is None else timeout
        process = await (await self._opened()).start(["bash", "-c", command], cwd=cwd or _HOME, env=env or {},
                                                     output=self._output, timeout=limit)
        said = {"stdout": "", "stderr": ""}
        try:
            async for chunk in process:
                said[chunk.stream] += chunk.text
                yield StreamChunk(chunk.text, chunk.stream)
            ended = await process.wait()
            assert ended is not None
        except BaseException:
            await process.kill()
            raise
        if ended.outcome is Outcome.TIMED_OUT:
            raise SandboxTimeoutError(limit, said["stdout"], said["stderr"])
        yield ExecutionResult(ended.exit_code, said["stdout"], said["stderr"])

    async def execute(self, command: str, *, timeout: float | None = None, cwd: str | None = None,
                      env: dict[str, str] | None = None, **kwargs: Any) -> ExecutionResult:
        """As `execute_streaming`, by one request."""
        limits = {} if timeout is None else {"timeout": timeout}
        result = await (await self._opened()).run(["bash", "-c", command], cwd=cwd or _HOME, env=env or {},
                                                  **limits)  # type: ignore[arg-type]  # one key, or none
        if result.outcome is Outcome.TIMED_OUT:
            raise SandboxTimeoutError(timeout or self._timeout, result.stdout_text, result.stderr_text)
        return ExecutionResult(result.exit_code, result.stdout_text, result.stderr_text)

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        """The content of a file."""
        return await (await self._opened()).files.read(path)

    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        """Write a file, with the folders that lead to it."""
        await (await self._opened()).files.write(path, content)

    async def remove_file(self, path: str, **kwargs: Any) -> None:
        """Remove a file."""
        await (await self._opened()).files.remove(path)

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        """The names in a folder."""
        try:
            found = await (await self._opened()).files.list(path)
        except (FileNotFoundError, NotADirectoryError):
            raise SandboxPathNotFoundError(path) from None
        return [FileInfo(info.name, info.kind == "folder", info.size) for info in found]

    def get_tools(self) -> list[DecoratedFunctionTool[..., Any]]:
        """Strands' own shell and editor of files, in this sandbox."""
        return [make_file_editor(sandbox=self, name="sandbox_file_editor"), make_shell(sandbox=self, name="sandbox_shell")]
