"""
Calls of a live sandbox about its copies of folders, blocking.

Runs in:   anybody's program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leeward.errors import RequestRejected

if TYPE_CHECKING:
    from leeward.client.changes import Changes
    from leeward.client.folder_state import FolderState
    from leeward.client.mounts import Mount
    from leeward.client.overlay import Overlay


class OverlayCalls:
    """
    The part of `Sandbox` that is about overlays.
    """

    _mounts: tuple[Mount, ...]
    #: What folders had that are compared, by target.
    _states: dict[str, FolderState]

    @property
    def id(self) -> str:
        raise NotImplementedError

    def _overlay(self, target: str) -> Overlay:
        raise NotImplementedError

    def _compared(self, target: str) -> FolderState | None:
        """
        What *target* had at the opening, if that is to be compared.

        Raises:
            RequestRejected: there are several, and none is named.
        """
        if not any(mount.compare for mount in self._mounts):
            return None
        assert self.id  # it is open, so what is to be compared was read
        several = [mount.target for mount in self._mounts if mount.compare or mount.overlay]
        if not target and len(several) > 1:
            raise RequestRejected(f"diff of which target? There are {', '.join(several)}")
        return self._states.get(target.rstrip("/") or next(iter(self._states)))

    def diff(self, target: str = "") -> Changes:
        """
        What has changed in a folder of the host, sorted by path: by the sandbox in its copy of it; or by anybody since
        the opening, where the sandbox was opened with `compare`. Of the latter every file is read, by this program.

        Args:
            target: which mount, where there is more than one overlay, or than one that is compared.

        Raises:
            RequestRejected: there is neither, or too much to be listed: 100,000 entries.
            Stale: the host's folder was replaced by another one.
            SandboxOver, DaemonError: as for `run`.
        """
        state = self._compared(target)
        if state is not None:
            return state.diff()
        return self._overlay(target).diff()

    def apply(self, paths: Iterable[str] | None = None, target: str = "") -> Changes:
        """
        Put what `diff` shows onto the host, with this program's own rights. Each file is replaced at once, not written
        over. Set-id bits are left out.

        Args:
            paths: files, and folders with all in them; None for everything.
            target: as for `diff`.

        Returns:
            What was applied.

        Raises:
            Stale: the host's file has changed since the sandbox was opened. Nothing was applied, unless it was changed
                in the middle of this call.
            RequestRejected: one of *paths* hasn't changed; or it is a special file, a link that leads out, or a file
                with large holes. Nothing was applied.
            SandboxOver, DaemonError: as for `run`.
        """
        return self._overlay(target).apply(paths)

    def discard(self, paths: Iterable[str] | None = None, target: str = "") -> Changes:
        """
        Undo what `diff` shows: the folder is there as the host has it. Nothing may run in the sandbox meanwhile, no
        kernel either.

        Args:
            paths: files, and folders with all in them; None for everything.
            target: as for `diff`.

        Returns:
            What was undone.

        Raises:
            RequestRejected: one of *paths* hasn't changed, or has gone with a folder that has to be discarded; or
                processes run. Nothing was undone.
            SandboxOver, DaemonError: as for `run`.
        """
        return self._overlay(target).discard(paths)

    def checkpoint(self, name: str = "", target: str = "") -> str:
        """
        Keep a copy of what the sandbox has changed, in its own memory, for `restore`. What processes write meanwhile
        may be in it or not.

        Args:
            name: letters, digits, "_", "-" and "."; a checkpoint of that name is replaced. By default a number.
            target: as for `diff`.

        Returns:
            Its name. `info` lists them, with the mount.

        Raises:
            RequestRejected: there are eight; or it doesn't fit: all files of the sandbox and all copies may have half
                of its memory.
            SandboxOver, DaemonError: as for `run`.
        """
        return self._overlay(target).checkpoint(name)

    def restore(self, name: str, target: str = "") -> None:
        """
        Make the sandbox's copy of the folder what it was at `checkpoint`. Nothing may run in the sandbox meanwhile, no
        kernel either. The checkpoint stays.

        Args:
            name: of a checkpoint.
            target: as for `diff`.

        Raises:
            RequestRejected: there is none, it doesn't fit beside what is there, or processes run. Nothing was changed.
            SandboxOver, DaemonError: as for `run`.
        """
        self._overlay(target).restore(name)
