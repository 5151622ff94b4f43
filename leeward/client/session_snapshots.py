"""Snapshots of sessions, of which there are none, by both clients."""

from __future__ import annotations

from typing import NoReturn

from leeward.errors import SnapshotFailed


class NoSnapshots:
    def snapshot(self) -> NoReturn:
        """Raise SnapshotFailed: a session has no snapshots. A kernel, a session of a sandbox, has: `Sandbox.kernel`."""
        raise _refusal()

    def rollback(self, snapshot: object, *, same_random: bool = False) -> NoReturn:
        """Raise SnapshotFailed, as `snapshot`."""
        raise _refusal()


def _refusal() -> SnapshotFailed:
    return SnapshotFailed("a session has no snapshots: use a kernel of a sandbox, which keeps its state as well")
