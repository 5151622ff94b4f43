"""The blocking client's calls about folders of the host, and how it opens a sandbox with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.mounts import open_with
from leeward.errors import RequestRejected, Stale

if TYPE_CHECKING:
    from leeward.client.changes import Changes
    from leeward.client.folder_state import FolderState
    from leeward.client.free_connections import FreeConnections
    from leeward.client.mounts import Mount
    from leeward.client.overlay import Overlay, UpperLayer
    from leeward.wire.replies import Reply


class OverlayCalls:
    """The base class of `Sandbox` with the calls about overlays and compared folders."""

    opens_until: float | None = None  # a time.monotonic() value, if there are no mounts
    beside_opening: Callable[[], None] | None = None  # for `open_with`, if there are mounts
    _connections: FreeConnections
    _mounts: tuple[Mount, ...]
    #: The state at the opening of each folder with `compare`, by target.
    _states: dict[str, FolderState]
    #: What `apply` has made of each file, by target.
    _applied: dict[str, dict[bytes, tuple[int, int]]]

    @property
    def id(self) -> str:
        raise NotImplementedError

    def _opened(self, fields: Mapping[str, Any]) -> Reply:
        with self._connections.lasting() if fields.get("held") else self._connections.one() as connection:
            if not self._mounts:
                return connection.call("sandbox_open", fields, self.opens_until)[0]
            return open_with(connection, fields, self._mounts, self._states, self.beside_opening)

    def _overlay(self, target: str) -> Overlay:
        from leeward.client.overlay import Overlay  # most sandboxes have none

        return Overlay(self, target)  # type: ignore[arg-type]  # it is a Sandbox

    def _with_states(self, target: str) -> UpperLayer:
        from leeward.client.overlay import with_states  # as `_overlay`

        return with_states(self, target)  # type: ignore[arg-type]  # as `_overlay`

    def _compared(self, target: str) -> FolderState | None:
        """The state of *target* at the opening, if it is a folder with `compare`; RequestRejected for "" with several."""
        if not any(mount.compare for mount in self._mounts):
            return None
        assert self.id  # opens the sandbox, which reads the folders with `compare`
        several = [mount.target for mount in self._mounts if mount.compare or mount.overlay]
        if not target and len(several) > 1:
            raise RequestRejected(f"diff of which target? There are {', '.join(several)}")
        return self._states.get(target.rstrip("/") or next(iter(self._states)))

    def diff(self, target: str = "") -> Changes:
        """
        The changes of a folder of the host, sorted by path. With `overlay`, these are the changes that the sandbox has
        made in its copy. With `compare`, they are the changes that any program has made in the folder since the sandbox
        was opened; this call reads every file of the folder.

        Args:
            target: the mount's target; needed if several mounts have `overlay` or `compare`.

        Raises:
            RequestRejected: no mount has `overlay` or `compare`, or there are more than 100,000 entries.
            Stale: another folder has replaced the host's folder.
        """
        state = self._compared(target)
        if state is not None:
            return state.diff()
        return self._overlay(target).diff()

    def apply(self, paths: Iterable[str] | None = None, target: str = "", changes: Changes | None = None) -> Changes:
        """
        Apply the changes that `diff` lists to the host's folder, with this program's own rights, and return them. Each
        file is replaced by a rename, so readers see the old or the new one. Set-id bits aren't copied. Everything is
        fetched before the first change. What an `apply` of a program that was killed hasn't done is done first, by its
        journal in the user's state folder, where the host hasn't changed since.

        Args:
            paths: files, and folders with all that is in them; None for all changes.
            target: as for `diff`.
            changes: what `diff` has returned, if somebody has looked at it: only these changes are applied, and none
                that the sandbox has made since.

        Raises:
            Stale: the host's file was changed since the sandbox was opened, or a file has another content in the
                sandbox than in *changes*. Nothing was applied, unless the file was changed during this call, or the
                disk is full: `applied` of the error says what was.
            RequestRejected: one of *paths* hasn't changed; or a change is a special file, a link that leads out of the
                folder, a file with large holes, or among *changes* a file that wasn't compared
                (`FolderChange.is_compared`). Nothing was applied.
        """
        return self._overlay(target).apply(paths, changes)

    def conflicts(self, changes: Changes, target: str = "") -> dict[str, Stale | RequestRejected]:
        """Those of *changes*, from `diff`, that `apply` would refuse: by path, with the error. Stale as for `diff`."""
        return self._overlay(target).conflicts(changes)

    def discard(self, paths: Iterable[str] | None = None, target: str = "") -> Changes:
        """
        Undo the changes that `diff` lists, and return them: the sandbox then has the folder as it is on the host, or the
        root as its image has it. Meanwhile no process and no kernel may run in the sandbox.

        Args:
            paths: files, and folders with all that is in them; None for all changes.
            target: as for `checkpoint`. Of an image's root what is returned wasn't compared: all is "modified" that isn't
                "deleted".

        Raises:
            RequestRejected: one of *paths* hasn't changed, or was removed with a folder, which then has to be discarded
                itself; or processes run; or a copy of what stays of an image's root doesn't fit. Nothing was undone.
        """
        return self._with_states(target).discard(paths)

    def checkpoint(self, name: str = "", target: str = "") -> str:
        """
        Keep a copy of the sandbox's changes, in the sandbox's memory, for `restore`, and return its name. If processes
        write during this call, the copy may have these writes or not. `info` lists all checkpoints, with their mounts.

        Args:
            name: letters, digits, "_", "-" and "."; by default a number. A checkpoint of the same name is replaced.
            target: as for `diff`; "/", or without folders "", for the root of an image, whose changes are kept.

        Raises:
            RequestRejected: there are eight checkpoints; or the copy doesn't fit: the sandbox's files and all copies
                together may take half of its memory, and in a root on a disk its limit `files`.
        """
        return self._with_states(target).checkpoint(name)

    def restore(self, name: str, target: str = "") -> None:
        """
        Return the sandbox's copy of the folder, or an image's root, to its state at the checkpoint *name*, which is kept.
        Meanwhile no process and no kernel may run in the sandbox. RequestRejected if they do, there is no such checkpoint,
        or its files don't fit into the memory beside the present ones; then nothing was changed.
        """
        self._with_states(target).restore(name)
