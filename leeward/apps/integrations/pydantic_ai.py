"""
A live sandbox as a workspace of Pydantic AI.

Runs in:   anybody's program; needs the extra `pydantic-ai`.

    from leeward.apps.integrations.pydantic_ai import LeewardWorkspace

    async with leeward.AsyncSandbox() as box:
        await agent.run("...", workspace=LeewardWorkspace(box))
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.sandbox_calls import StartOptions
from leeward.errors import DaemonAway, SandboxOver
from leeward.spec.outcome import Outcome, Result

_PROVIDER = "leeward"
_HOME = "/workspace"


class LeewardWorkspace:
    """A workspace of Pydantic AI, in the live sandbox *box*, which the first operation opens, and the caller closes."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._attach: Callable[[], Awaitable[AsyncSandbox]] | None = None
        self._box = box
        self._ref: WorkspaceRef | None = None

    @classmethod
    def attach(cls, ref: WorkspaceRef, *, socket: str | None = None) -> LeewardWorkspace:
        """
        The workspace that *ref* names, which any program of the same user may have made.

        Args:
            ref: the `ref` of another workspace.
            socket: path of the daemon's socket; as for Client.

        Raises:
            ValueError: *ref* belongs to another provider.
        """
        if ref.provider != _PROVIDER:
            raise ValueError(f"a workspace of {ref.provider!r} is not a workspace of leeward")
        workspace = cls(AsyncSandbox(socket=socket))
        workspace._ref = ref
        workspace._attach = lambda: AsyncSandbox.attach(ref.id, socket=socket)
        return workspace

    async def _open(self) -> AsyncSandbox:
        if self._attach is not None:
            self._box, self._attach = await self._attach(), None
        if self._ref is None:
            self._ref = WorkspaceRef(provider=_PROVIDER, id=await self._box.id())
        return self._box

    @property
    def ref(self) -> WorkspaceRef | None:
        """A reference to the sandbox; None before it is opened."""
        return self._ref

    async def working_dir(self) -> str:
        """The folder in which commands start."""
        with _available():
            await (await self._open()).info()
        return _HOME

    # --- commands ---------------------------------------------------------------

    async def run(self, command: WorkspaceCommand, *, shell: bool = False, env: Mapping[str, str] | None = None,
                  timeout: float | None = None) -> CommandResult:
        """
        Run a program, or a line by the shell, and wait for its end.

        Args:
            command: the program and its arguments; with *shell* a line.
            shell: whether *command* is a line for the shell.
            env: environment variables, added to the sandbox's.
            timeout: seconds; the sandbox's `timeout` by default.

        Raises:
            TypeError, ValueError: an argument is invalid.
            WorkspaceTimeoutError, WorkspaceOutputLimitError: the command was killed at that limit.
            WorkspaceUnavailableError: the sandbox has ended.
        """
        if isinstance(command, str) is not shell:
            raise TypeError("a line needs shell=True, and a program with arguments shell=False")
        if any("\0" in word for word in ([command] if isinstance(command, str) else command)):
            raise ValueError("a command has no NUL")
        options = StartOptions(env=env or {}, overflow="end")
        if timeout is not None:
            if isinstance(timeout, bool) or not math.isfinite(timeout) or timeout <= 0:
                raise ValueError(f"timeout: {timeout!r} is not a positive, finite number of seconds")
            options["timeout"] = timeout
        with _available():
            box = await self._open()
            result = await (box.shell(command, **options) if isinstance(command, str) else box.run(command, **options))
        return _command_result(result)

    # --- files ------------------------------------------------------------------

    async def read_bytes(self, path: str) -> bytes:
        """The content of a file."""
        with _available():
            return await (await self._open()).files.read(path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file, with the folders that lead to it. A link is followed."""
        with _available():
            await (await self._open()).files.write(path, data)

    async def stat(self, path: str) -> FileEntry:
        """The entry at *path*. For a link, the file or folder that the link leads to."""
        with _available():
            found = await (await self._open()).files.stat(path)
        return FileEntry(name=posixpath.basename(path), path=path, is_dir=found.kind == "folder",
                         size=found.size if found.is_file else None)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """The entries of a folder."""
        with _available():
            files = (await self._open()).files
            found = await files.list(path)
            rows = []
            for entry in found:
                inside = posixpath.join(path, entry.name)
                folder = entry.kind == "folder"
                if entry.kind == "link":
                    try:
                        folder = (await files.stat(inside)).kind == "folder"
                    except OSError:
                        folder = False  # the link is broken
                rows.append(FileEntry(name=entry.name, path=inside, is_dir=folder,
                                      size=entry.size if entry.is_file else None))
        return rows

    async def make_dir(self, path: str) -> None:
        """Make a folder, with the folders that lead to it, if it doesn't exist."""
        with _available():
            await (await self._open()).files.mkdir(path, exist_ok=True)

    async def remove(self, path: str) -> None:
        """
        Remove a file, a link, or a folder with all that is in it.

        Raises:
            ValueError: the path is the working folder, or a folder above it.
        """
        whole = posixpath.normpath(posixpath.join(_HOME, path))
        if posixpath.commonpath([whole, _HOME]) == whole:
            raise ValueError(f"{path!r}: the working folder is in it")
        with _available():
            await (await self._open()).files.remove(path, recursive=True)

    async def exists(self, path: str) -> bool:
        """Whether *path* exists."""
        with _available():
            return await (await self._open()).files.exists(path)

    async def realpath(self, path: str) -> str:
        """
        *path* without links, `.` and `..`. Components that don't exist are unchanged.

        Raises:
            OSError: links form a circle.
        """
        with _available():
            result = await (await self._open()).run(["realpath", "-mz", "--", path])
        if result.exit_code:
            raise OSError(result.stderr_text.strip())
        return result.stdout_text.removesuffix("\0")


def _command_result(result: Result) -> CommandResult:
    out, err = result.stdout_text, result.stderr_text
    if result.outcome is Outcome.TIMED_OUT:
        raise WorkspaceTimeoutError("the command ran out of its time", stdout=out, stderr=err)
    if result.outcome is Outcome.OUTPUT_LIMIT:
        raise WorkspaceOutputLimitError("the command wrote more than it may", stdout=out, stderr=err,
                                        limit=len(result.stdout) + len(result.stderr))
    return CommandResult(exit_code=result.exit_code, stdout=out, stderr=err)


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except (SandboxOver, DaemonAway) as error:
        raise WorkspaceUnavailableError(str(error)) from error
