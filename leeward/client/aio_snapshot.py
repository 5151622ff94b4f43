"""A snapshot of a kernel's state, for asyncio."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# blocking: from leeward.client.free_connections import FreeConnections
from leeward.client.aio_free_connections import AsyncFreeConnections  # asyncio
from leeward.client.conversation import checked
from leeward.client.sandbox_calls import Rows
from leeward.client.snapshot_files import SnapshotReader, facts_of, snapshot_written
from leeward.errors import SnapshotFailed
from leeward.wire.sandbox_replies import imported, piece, rows, snapshot_facts, snapshot_needs


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

    async def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write it into the file *path*, which only this user can read, so that a later daemon can have it. Whoever reads the
        file can read what the kernel could.
        """
        connections = AsyncFreeConnections(self._socket)
        try:
            reply, _ = await connections.call("snapshot_export", {"snapshot": self.id})
            key, sizes = checked(snapshot_needs, reply)
            with snapshot_written(path, {"key": key, "sizes": sizes, "made": self.made,
                                         "facts": facts_of(self.python, self.packages, self.lost)}) as write:
                at = 0
                while at < sum(sizes):
                    reply, _ = await connections.call("snapshot_read", {"snapshot": self.id, "offset": at})
                    write(data := checked(piece, reply))
                    at += len(data)
        finally:
            await connections.close()

    @classmethod
    async def load(cls, path: str | os.PathLike[str], socket: str | os.PathLike[str] | None = None) -> AsyncSnapshot:
        """
        The snapshot in the file *path*, taken into the daemon's memory. SnapshotFailed, with the name of what is different,
        if it was taken on another kernel, processor or version of leeward, or the file isn't as it was written. Files that
        it has mapped are compared when a kernel begins with it.
        """
        connections = AsyncFreeConnections(socket)
        try:
            with open(path, "rb") as file:
                reader = SnapshotReader(file)
                reply, _ = await connections.call("snapshot_import", reader.head)
                name = checked(imported, reply)
                try:
                    for data in reader.pieces():
                        await connections.call("snapshot_write", {"snapshot": name, "data": data})
                except SnapshotFailed:
                    await connections.call("snapshot_remove", {"snapshot": name})
                    raise
        finally:
            await connections.close()
        return await cls.find(name, socket)

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
