"""A snapshot of a kernel's state, for asyncio."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# blocking: from leeward.client.free_connections import FreeConnections
from leeward.client.aio_free_connections import AsyncFreeConnections  # asyncio
from leeward.client.conversation import checked
from leeward.client.sandbox_calls import Rows
from leeward.wire.sandbox_replies import rows, snapshot_facts


class AsyncSnapshot:
    """
    The state of a kernel at one moment: `AsyncKernel.snapshot` takes one. It belongs to the user and to the daemon, not to
    the sandbox: kernels in any sandbox of this user may begin with it (`AsyncSandbox.kernel`) or be set back to it
    (`AsyncKernel.rollback`). It goes when it is removed, when nobody has used it for the daemon's `snapshot_idle`, or with
    the daemon. As a context it is removed at the end.

    Attributes:
        id: its id, 26 characters.
        size: bytes of the daemon's memory that it takes.
        made: when it was taken, in seconds since the epoch.
        python: the version of its Python.
        packages: imported packages beside the standard library, by name, with their versions, "" where unknown.
        lost: what copies don't have of it, by name, such as sockets.
    """

    def __init__(self, socket: str | os.PathLike[str] | None, facts: Mapping[str, Any]) -> None:
        self._socket = socket
        self.id: str = facts["snapshot"]
        self.size: int = facts["size"]
        self.made: float = facts["made"]
        self.python: str = facts["python"]
        self.packages: dict[str, str] = facts["packages"]
        self.lost: list[str] = facts["lost"]

    @classmethod
    async def find(cls, id: str, socket: str | os.PathLike[str] | None = None) -> AsyncSnapshot:
        """The snapshot *id* of this user; SnapshotFailed if there is none."""
        return cls(socket, await _ask(socket, "snapshot_info", id))

    @staticmethod
    async def list(*, socket: str | os.PathLike[str] | None = None) -> Rows:
        """The snapshots of this user, the oldest first: a dict each with `snapshot` (the id), `size`, `made`, `python`."""
        connections = AsyncFreeConnections(socket)
        try:
            reply, _ = await connections.call("snapshot_list", {})
            return checked(rows, reply, "snapshots")
        finally:
            await connections.close()

    async def remove(self) -> None:
        """Remove it, and free its memory. Kernels that began with it live on. SnapshotFailed if it isn't there any more."""
        await _ask(self._socket, "snapshot_remove", self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<AsyncSnapshot {self.id}, {self.size} bytes>"

    async def __aenter__(self) -> AsyncSnapshot:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.remove()


async def _ask(socket: str | os.PathLike[str] | None, op: str, snapshot: str) -> dict[str, Any]:
    connections = AsyncFreeConnections(socket)
    try:
        reply, _ = await connections.call(op, {"snapshot": snapshot})
        return checked(snapshot_facts, reply, op == "snapshot_info")
    finally:
        await connections.close()
