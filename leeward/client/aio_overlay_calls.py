"""The asyncio client's calls about folders of the host: those of overlay_calls.py, in a thread."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.mounts import OpenFolders
from leeward.client.sandbox import Sandbox
from leeward.errors import RequestRejected, Stale
from leeward.wire.replies import Reply

if TYPE_CHECKING:
    from leeward.client.aio_free_connections import AsyncFreeConnections
    from leeward.client.changes import Changes
    from leeward.client.folder_state import FolderState
    from leeward.client.mounts import Mount


class AsyncOverlayCalls:
    """The base class of `AsyncSandbox` with the calls about overlays and compared folders."""

    _connections: AsyncFreeConnections
    _mounts: tuple[Mount, ...]
    _states: dict[str, FolderState]
    _blocking: Sandbox | None = None

    async def id(self) -> str:
        raise NotImplementedError

    async def _opened(self, fields: Mapping[str, Any]) -> Reply:
        if not self._mounts:
            return (await self._connections.open(fields))[0]
        with (await to_thread(OpenFolders, self._mounts) if any(mount.compare for mount in self._mounts)
              else OpenFolders(self._mounts)) as folders:
            self._states.update(folders.states)
            return (await self._connections.open({**fields, "mounts": folders.rows}, folders))[0]

    async def diff(self, target: str = "") -> Changes:
        """Call `Sandbox.diff` in a thread."""
        return await to_thread((await self._blocking_sandbox()).diff, target)

    async def apply(self, paths: Iterable[str] | None = None, target: str = "",
                    changes: Changes | None = None) -> Changes:
        """Call `Sandbox.apply` in a thread, which goes on if the task is cancelled."""
        return await to_thread((await self._blocking_sandbox()).apply, paths, target, changes)

    async def conflicts(self, changes: Changes, target: str = "") -> dict[str, Stale | RequestRejected]:
        """Call `Sandbox.conflicts` in a thread."""
        return await to_thread((await self._blocking_sandbox()).conflicts, changes, target)

    async def discard(self, paths: Iterable[str] | None = None, target: str = "") -> Changes:
        """Call `Sandbox.discard` in a thread."""
        return await to_thread((await self._blocking_sandbox()).discard, paths, target)

    async def checkpoint(self, name: str = "", target: str = "") -> str:
        """Call `Sandbox.checkpoint` in a thread."""
        return await to_thread((await self._blocking_sandbox()).checkpoint, name, target)

    async def restore(self, name: str, target: str = "") -> None:
        """Call `Sandbox.restore` in a thread."""
        await to_thread((await self._blocking_sandbox()).restore, name, target)

    async def _blocking_sandbox(self) -> Sandbox:
        if self._blocking is None:
            self._blocking = Sandbox(socket=self._connections.socket)
            self._blocking._id = await self.id()
            self._blocking._states, self._blocking._mounts = self._states, self._mounts
        return self._blocking

    def _close_blocking(self) -> None:
        if self._blocking is not None:
            self._blocking._connections.close()
