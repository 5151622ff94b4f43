"""
A live sandbox as an environment of AG2's tools.

Runs in:   anybody's program; needs the extra `ag2`.

    from ag2.tools import SandboxCodeTool, SandboxShellTool
    from leeward.apps.integrations.ag2 import LeewardAg2Environment

    async with LeewardAg2Environment(memory="1G") as environment:
        Agent("worker", config=config, tools=[SandboxShellTool(environment), SandboxCodeTool(environment)])
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from ag2.tools.sandbox import ExecResult, SandboxBase

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.model_text import cut
from leeward.spec.outcome import Outcome

_HOME = PurePosixPath("/workspace")
_TIMED_OUT = 124


class LeewardAg2Environment(SandboxBase):
    """
    A live sandbox of its own, which all tools that have it share, until `aclose`. A cancelled call is killed.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, **options: Any) -> None:
        self._box = AsyncSandbox(**{"profile": "workdir", "held": True, **options})

    def __deepcopy__(self, memo: object) -> LeewardAg2Environment:
        """The same one: an agent copies its tools."""
        return self

    @property
    def workdir(self) -> PurePosixPath:
        """The folder in which programs start."""
        return _HOME

    @property
    def host_workdir(self) -> Path | None:
        """None: it isn't the host's."""
        return None

    @asynccontextmanager
    async def open(self, context: object = None) -> AsyncIterator[LeewardAg2Environment]:
        """The sandbox itself, for one call of a tool."""
        yield self

    async def exec(self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None) -> ExecResult:
        """Run a program; 124 is the exit code at a time limit. SandboxOver if the sandbox has ended."""
        limits = {} if timeout is None else {"timeout": timeout}
        result = await self._box.run(argv, env=env or {}, **limits)  # type: ignore[arg-type]  # one key, or none
        code = _TIMED_OUT if result.outcome is Outcome.TIMED_OUT else result.exit_code
        return ExecResult(cut(result.stdout_text + result.stderr_text), code)

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        """Write a file below the folder in which programs start."""
        if path.is_absolute():
            raise ValueError(f"{str(path)!r:.200} isn't relative")
        await self._box.files.write(str(path), content)

    async def aclose(self) -> None:
        """End the sandbox, with all that runs in it."""
        await self._box.close()
