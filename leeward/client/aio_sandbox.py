"""
A live sandbox for asyncio: the calls of `Sandbox`, with `await`.

Runs in:   anybody's program, in one event loop. All calls share one connection, on which they wait side by side.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from leeward.client.aio import AsyncClient
from leeward.client.aio_files import AsyncFiles
from leeward.client.aio_process import AsyncKernel, AsyncProcess
from leeward.client.fetching import Fetched, Headers, fetch_fields, fetched_of
from leeward.client.host_view import add_host_view
from leeward.client.mounts import Mount, mounts_of, open_with_await
from leeward.client.options import TurnOptions, awaited_by, packages_of
from leeward.client.results import result_of
from leeward.client.sandbox import Sandbox
from leeward.client.sandbox_calls import (
    CLOSE_S,
    CodeOptions,
    OnData,
    OpenOptions,
    Rows,
    StartOptions,
    TerminalOptions,
    argv_of,
    bounded_fields,
    checked,
    code_fields,
    id_of,
    open_fields,
    program_fields,
    terminal_fields,
)
from leeward.errors import DaemonError, RequestRejected, SandboxOver, Stale
from leeward.outcome import Result
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import answer, page, rows, sandbox_id, whole

# Imported in functions: what not every start needs; 13 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.client.changes import Changes
    from leeward.client.folder_state import FolderState


class AsyncSandbox:
    """
    A sandbox that keeps its files and processes between calls, until it is closed.

        async with leeward.AsyncSandbox() as box:
            await box.shell("echo 40 2 > numbers")

    `Sandbox` describes the options and the calls. Tasks may share a sandbox, and their calls run side by side.
    Cancelling a task that waits for `run` or `shell` ends that program.

    Args:
        socket: path of the daemon's socket; as for Client.
        mounts: folders of the host that the sandbox shows; at most 16.
        workdir: the folder of the host that the sandbox has as /workspace, and can write to.
        overlay: keep changes of *workdir* in the sandbox; `diff` lists them.
        compare: read all of *workdir* at the opening, so that `diff` can list what was written there since.
    """

    def __init__(self, *, socket: str | os.PathLike[str] | None = None, mounts: Iterable[Mount] = (),
                 workdir: str | os.PathLike[str] | None = None, overlay: bool = False, compare: bool = False,
                 **options: Unpack[OpenOptions]) -> None:
        self._blocking: Sandbox | None = None
        self._client = AsyncClient(socket)
        self._packages = packages_of(options.get("packages", ()))
        folders = mounts_of(mounts, workdir, overlay, compare)
        self._fields, self._mounts = add_host_view(open_fields(**options), folders)
        self._states: dict[str, FolderState] = {}
        self._opening = asyncio.Lock()
        self._id = ""
        self._closed = False

    @classmethod
    async def attach(cls, sandbox: str, *, socket: str | os.PathLike[str] | None = None) -> AsyncSandbox:
        """
        The sandbox with this id, which another program of the same user has opened.

        Raises:
            SandboxOver: this user has no such sandbox.
            RequestRejected: *sandbox* isn't an id.
        """
        box = cls(socket=socket)
        box._id = id_of(sandbox)
        try:
            await box.info()
        except BaseException:
            await box._client.close()
            raise
        return box

    @staticmethod
    async def list(*, socket: str | os.PathLike[str] | None = None) -> Rows:
        """The `info` of each sandbox of this user, the oldest first."""
        async with AsyncClient(socket) as client:
            found, last = checked(page, (await client.ask("sandbox_list", {}))[0])
            while last:
                more, last = checked(page, (await client.ask("sandbox_list", {"after": last}))[0], last)
                found += more
            return found

    async def id(self) -> str:
        """The sandbox's id, 26 characters. The first use opens the sandbox."""
        if not self._id:
            async with self._opening:
                if not self._id:
                    if self._closed:
                        raise SandboxOver("the sandbox was closed before it was used", "killed")
                    self._id = checked(sandbox_id, await self._open())
        return self._id

    @property
    def files(self) -> AsyncFiles:
        """The sandbox's files."""
        return AsyncFiles(self)

    async def _open(self) -> Reply:
        if not self._packages:
            return await self._opened(self._fields)
        from leeward.client import packages

        await self._client.ask("sandbox_list", {})  # starts a daemon if there is none, which `status` doesn't
        status = checked(answer, (await self._client.ask("status", {}))[0])
        wanted = packages.wanted_packages(self._packages, self._client.socket, status)
        return await packages.with_environment_async(self._fields, wanted, self._opened)

    async def _opened(self, fields: Mapping[str, Any]) -> Reply:
        if not self._mounts:
            return (await self._client.ask("sandbox_open", fields))[0]
        return await open_with_await(self._client.ask, fields, self._mounts, self._states)

    async def diff(self, target: str = "") -> Changes:
        """Call `Sandbox.diff` in a thread."""
        return await asyncio.to_thread((await self._blocking_sandbox()).diff, target)

    async def apply(self, paths: Iterable[str] | None = None, target: str = "",
                    changes: Changes | None = None) -> Changes:
        """Call `Sandbox.apply` in a thread, which goes on if the task is cancelled."""
        return await asyncio.to_thread((await self._blocking_sandbox()).apply, paths, target, changes)

    async def conflicts(self, changes: Changes, target: str = "") -> dict[str, Stale | RequestRejected]:
        """Call `Sandbox.conflicts` in a thread."""
        return await asyncio.to_thread((await self._blocking_sandbox()).conflicts, changes, target)

    async def discard(self, paths: Iterable[str] | None = None, target: str = "") -> Changes:
        """Call `Sandbox.discard` in a thread."""
        return await asyncio.to_thread((await self._blocking_sandbox()).discard, paths, target)

    async def checkpoint(self, name: str = "", target: str = "") -> str:
        """Call `Sandbox.checkpoint` in a thread."""
        return await asyncio.to_thread((await self._blocking_sandbox()).checkpoint, name, target)

    async def restore(self, name: str, target: str = "") -> None:
        """Call `Sandbox.restore` in a thread."""
        await asyncio.to_thread((await self._blocking_sandbox()).restore, name, target)

    async def _blocking_sandbox(self) -> Sandbox:
        """A blocking Sandbox for the same sandbox, for calls that work with files of the host."""
        if self._blocking is None:
            self._blocking = Sandbox(socket=self._client.socket)
            self._blocking._id = await self.id()
            self._blocking._states, self._blocking._mounts = self._states, self._mounts
        return self._blocking

    async def ask(self, op: str, fields: Mapping[str, Any]) -> Reply:
        """Send one request about this sandbox; returns the reply, without its descriptors."""
        reply, descriptors = await self._client.ask(op, {"sandbox": await self.id(), **fields})
        for fd in descriptors:
            os.close(fd)
        return reply

    async def run(self, argv: Iterable[str], *, on_stdout: OnData | None = None, on_stderr: OnData | None = None,
                  **options: Unpack[StartOptions]) -> Result:
        """Run a program and wait for its end, as `Sandbox.run` does."""
        return await self._run(argv_of(argv), options, on_stdout, on_stderr)

    async def shell(self, line: str, *, on_stdout: OnData | None = None, on_stderr: OnData | None = None,
                    **options: Unpack[StartOptions]) -> Result:
        """Run a line by `/bin/sh -c`, as `Sandbox.shell` does."""
        return await self._run(line, options, on_stdout, on_stderr)

    async def _run(self, what: Sequence[str] | str, options: StartOptions, on_stdout: OnData | None,
                   on_stderr: OnData | None) -> Result:
        fields = program_fields(what, **options)
        if on_stdout is None and on_stderr is None:
            return result_of(*await self._client.ask("process_run", {"sandbox": await self.id(), **fields}))
        process = await self._start(bounded_fields(fields))
        try:
            return await process.result(on_stdout, on_stderr)
        except BaseException:
            try:
                await asyncio.shield(process.kill())
            except DaemonError:
                pass  # the program's own error is raised
            raise

    async def start(self, argv: Iterable[str] | str, **options: Unpack[StartOptions]) -> AsyncProcess:
        """
        Start a program and return at once; it runs until it ends, is killed, or the sandbox ends.

        Args:
            argv: the program and its arguments, or one line for the shell.
        """
        what = argv if isinstance(argv, str) else argv_of(argv)
        opened = "stdin" in options and options["stdin"] is None
        return await self._start({**program_fields(what, **options), **({"open": True} if opened else {})})

    async def terminal(self, argv: Iterable[str] | str = ("sh",), size: tuple[int, int] = (24, 80),
                       **options: Unpack[TerminalOptions]) -> AsyncProcess:
        """
        Start a program on a terminal, as `Sandbox.terminal` does.

        Args:
            argv: the program and its arguments, or one line for the shell.
            size: rows and columns, each from 1 to 65,535.
        """
        what = argv if isinstance(argv, str) else argv_of(argv)
        return await self._start(terminal_fields(what, size, options))

    async def _start(self, fields: Mapping[str, Any]) -> AsyncProcess:
        return AsyncProcess(self, checked(whole, await self.ask("process_start", fields), "process", 1))

    async def fetch(self, url: str, method: str = "GET", headers: Headers | None = None,
                    body: bytes | str = b"") -> Fetched:
        """Send an HTTP or HTTPS request by the sandbox's policy, as `Sandbox.fetch` does."""
        fields = {"sandbox": await self.id(), **fetch_fields(url, method, headers, body)}
        return fetched_of(*await self._client.ask("sandbox_fetch", fields))

    async def execute(self, code: str | bytes, **options: Unpack[CodeOptions]) -> Result:
        """
        Run Python code in a fresh interpreter with the sandbox's files.

        Args:
            code: Python source, at most 16 MiB.
        """
        return await self._execute(0, code, options)

    async def _execute(self, kernel: int, code: str | bytes, options: CodeOptions | TurnOptions) -> Result:
        fields = {"sandbox": await self.id(), **code_fields(code, options), **({"kernel": kernel} if kernel else {})}
        return result_of(*await self._client.ask("sandbox_execute", fields, functions=awaited_by(options)))

    async def kernel(self) -> AsyncKernel:
        """Start a Python process that keeps its state between requests, as `Sandbox.kernel` does."""
        return AsyncKernel(self, checked(whole, await self.ask("kernel_open", {}), "kernel", 1))

    async def processes(self) -> Rows:
        """
        The processes that clients have started, with the newest of those that have ended, as `Sandbox.processes`
        returns them.
        """
        return checked(rows, await self.ask("process_list", {}), "processes")

    async def process(self, number: int) -> AsyncProcess:
        """The process with this number in `processes`. Raises ProcessOver if the sandbox doesn't list it."""
        process = AsyncProcess(self, number)
        await process.row()
        return process

    async def info(self) -> dict[str, Any]:
        """The sandbox's state, as `Sandbox.info` returns it."""
        return checked(answer, await self.ask("sandbox_info", {}))

    async def extend(self, *, idle: float | None = None, lifetime: float | None = None) -> dict[str, Any]:
        """
        Change when the daemon ends the sandbox.

        Args:
            idle: seconds without a call.
            lifetime: seconds from now.

        Returns:
            The sandbox's state, as `info` returns it.
        """
        asked = {name: value for name, value in (("idle", idle), ("lifetime", lifetime)) if value is not None}
        return checked(answer, await self.ask("sandbox_extend", asked))

    async def set_timeout(self, seconds: float) -> None:
        """Have the daemon end the sandbox *seconds* from now: `extend` with a lifetime."""
        await self.extend(lifetime=seconds)

    async def kill(self) -> None:
        """End the sandbox, and return when none of its processes is left. Calls that wait raise SandboxOver."""
        await self.ask("sandbox_kill", {})

    async def close(self) -> None:
        """`kill` the sandbox, if it was opened, and close the connection."""
        async with self._opening:
            self._closed = True
        try:
            if self._id:
                await self._client.ask("sandbox_kill", {"sandbox": self._id}, CLOSE_S)
        except DaemonError:
            pass  # the sandbox has ended, or ends after its idle time
        finally:
            self._close_links()
            await self._client.close()

    def _close_links(self) -> None:
        if self._blocking is not None:
            self._blocking._links.close()

    async def detach(self) -> str:
        """
        Close the connection, and let the sandbox run on.

        Returns:
            The sandbox's id, for `attach`.
        """
        found = await self.id()
        if self._fields.get("held"):
            await self.ask("sandbox_extend", {"detach": True})
        self._close_links()
        await self._client.close()
        return found

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self._id or 'not open yet'}>"
