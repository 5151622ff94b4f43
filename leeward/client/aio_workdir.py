"""A folder with tools for asyncio: the calls of `WorkdirSandbox`, each in a thread that belongs to this object."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from leeward.client.fetching import Fetched, Headers
from leeward.client.mounts import Mount
from leeward.client.workdir import WorkdirSandbox
from leeward.client.workdir_files import WorkdirEntry
from leeward.spec.outcome import Result

if TYPE_CHECKING:
    from leeward.client.changes import Changes

P = ParamSpec("P")
T = TypeVar("T")

#: Calls that run side by side; further ones wait for their turn.
MOST_AT_ONCE = 16


class AsyncWorkdirSandbox:
    r"""
    A folder of the host, and commands that work in this folder and reach nothing else of the host.

        async with leeward.AsyncWorkdirSandbox("project") as work:
            await work.write_file("numbers", "40\n2\n")
            print((await work.exec("sort", ["-n", "numbers"])).text)

    `WorkdirSandbox` describes the arguments, the calls and the errors. Tasks may share it: 16 calls run at once. If a
    task is cancelled, its command runs on until it ends or reaches its time limit.
    """

    def __init__(self, work_dir: str | os.PathLike[str], mounts: Iterable[Mount] = (),
                 env_vars: Mapping[str, str] | None = None, timeout: float = 30.0, memory: int | str = "512M",
                 cpu: float | None = None, fetch_policy: Mapping[str, Any] | None = None, *, egress: str | None = None,
                 overlay: bool = False, compare: bool = False, protect: bool = False,
                 socket: str | os.PathLike[str] | None = None, retry_busy: bool = True) -> None:
        self._work = WorkdirSandbox(work_dir, mounts, env_vars, timeout, memory, cpu, fetch_policy, egress=egress,
                                    overlay=overlay, compare=compare, protect=protect, socket=socket,
                                    retry_busy=retry_busy)
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "leeward-workdir")  # none before the first call

    async def _do(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        self._work._check()
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **options))

    async def exec(self, command: str, args: Iterable[str] = (), *, background: bool = False) -> Result:
        """Run a command and wait for its end, as `WorkdirSandbox.exec` does."""
        return await self._do(self._work.exec, command, args, background=background)

    async def exec_js(self, code: str) -> Result:
        """Run JavaScript, as `WorkdirSandbox.exec_js` does."""
        return await self._do(self._work.exec_js, code)

    async def available_tools(self) -> tuple[str, ...]:
        """The commands that `exec` accepts and this host has."""
        return await self._do(self._work.available_tools)

    async def fetch(self, url: str, method: str = "GET", headers: Headers | None = None,
                    body: bytes | str = b"") -> Fetched:
        """Send an HTTP or HTTPS request by the policy, as `WorkdirSandbox.fetch` does."""
        return await self._do(self._work.fetch, url, method, headers, body)

    async def read_file(self, path: str | os.PathLike[str]) -> bytes:
        """Read a file of the work folder, as `WorkdirSandbox.read_file` does."""
        return await self._do(self._work.read_file, path)

    async def write_file(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """Write a file of the work folder, as `WorkdirSandbox.write_file` does."""
        await self._do(self._work.write_file, path, data)

    async def list_dir(self, path: str | os.PathLike[str] = ".") -> list[WorkdirEntry]:
        """The entries of a folder, as `WorkdirSandbox.list_dir` returns them."""
        return await self._do(self._work.list_dir, path)

    async def diff(self) -> Changes:
        """The changes of the folder, as `WorkdirSandbox.diff` returns them."""
        return await self._do(self._work.diff)

    @property
    def put_away(self) -> list[str]:
        """As `WorkdirSandbox.put_away`."""
        return self._work.put_away

    async def destroy(self) -> None:
        """End the sandbox and its processes. The folder and its files stay. Further calls do nothing."""
        try:
            await asyncio.to_thread(self._work.destroy)  # not in `_threads`, which may all wait for commands
        finally:
            self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncWorkdirSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    def __repr__(self) -> str:
        return repr(self._work).replace("<", "<Async", 1)
