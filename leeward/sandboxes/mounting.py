"""
Folders of the host in a sandbox: opened for its client, with owners mapped for its processes, and mounted.

Runs in:   the daemon, on the reactor's thread.
Owns:      the trees, until they are mounted or given up; afterwards the upper folders of overlays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from leeward.dataclass import dataclass, field
from leeward.errors import BadRequest, Busy, LeewardError
from leeward.loop.barrier import in_any_case
from leeward.protocols import Protocol
from leeward.sandboxes.place import PorterAsked
from leeward.spec.folders import Folder, is_deep
from leeward.spec.profiles.agent import HomePlan, check_names

#: Seconds that the mounts of one sandbox may take, and names that one may have hidden after its opening: each is a
#: mount, which the kernel keeps.
MOUNT_S, MOST_HIDDEN = 5.0, 2048


class FolderOpener(Protocol):
    """
    `leeward.worker.opener.Opener`.
    """

    def map(self, trees: Sequence[int], user: tuple[int, int], host: tuple[int, int],
            mapped: Callable[[list[int] | LeewardError, list[tuple[int, int]]], None]) -> PorterAsked: ...


class Carrier(Protocol):
    """
    The sandbox's runner, as far as it is worked on from here.
    """

    @property
    def owner(self) -> tuple[int, int]: ...
    def carry(self, order: Mapping[str, Any], fds: Sequence[int],
              answered: Callable[[Mapping[str, Any] | LeewardError, list[int]], None],
              seconds: float, *, apart: bool = False) -> PorterAsked: ...


@dataclass(slots=True)
class Mounts:
    """
    The mounts of a sandbox.

    Attributes:
        trees: one for each of *folders*; this object owns them.
        user: uid and gid of the client.
        found: device and inode of each folder.
        since: nanoseconds since the epoch, by the clock of file systems, before they were opened.
        layers: the folders with the layers of the overlays among *folders*, in order, once they are mounted; owned as
            well.
        kept: names of the copies of each overlay, by its target.
        hides: of a view of the host: folders, and names in them that aren't to be seen; None for any other view.
        home: of the profile `agent`: its home, and what is hidden and protected; None for any other.
        covers: a folder of the sandbox's with what hidden names are covered by, once a home is mounted; owned as well.
            -1 without.
        hidden: names that were hidden since it was opened, in all.
        changing: an overlay is copied, or changed: one at a time, since the steps on the way have fixed names.
    """

    folders: tuple[Folder, ...]
    trees: list[int]
    user: tuple[int, int]
    found: list[tuple[int, int]]
    since: int
    layers: list[int]
    kept: dict[str, list[str]] = field(default_factory=dict)
    changing: bool = False
    hides: Sequence[tuple[str, Sequence[str]]] | None = None
    home: HomePlan | None = None
    covers: int = -1
    hidden: int = 0

    def layer(self, target: str) -> int:
        """
        The folder with the layers of the overlay at *target*.

        Raises:
            BadRequest: there is none.
        """
        overlays = [folder.target for folder in self.folders if folder.overlay]
        if target not in overlays or len(self.layers) != len(overlays):
            raise BadRequest(f"{target!r:.80} is no overlay of this sandbox's"
                             + (f"; these are: {', '.join(overlays)}" if overlays else ": it was opened without one"))
        return self.layers[overlays.index(target)]

    def number(self, target: str) -> int:
        """
        The number of the overlay at *target*, by which its layers are named.
        """
        return [folder.target for folder in self.folders].index(target)

    def check_still(self) -> None:
        """
        Raises:
            Busy: an overlay is copied, or changed.
        """
        if self.changing:
            raise Busy("an overlay of the sandbox is being kept or changed")

    def names(self, target: str) -> list[str]:
        return self.kept.setdefault(target, [])

    def info(self) -> list[Mapping[str, Any]]:
        """
        The maps for a client.
        """
        return [{"path": folder.path, "target": folder.target, "writable": folder.writable, "overlay": folder.overlay,
                 "file": folder.file, "device": device, "inode": inode, "since": self.since,
                 **({"checkpoints": list(self.kept.get(folder.target, ()))} if folder.overlay else {})}
                for folder, (device, inode) in zip(self.folders, self.found, strict=True)]

    def landed(self) -> None:
        """
        The trees are mounted, or mounting has failed: close them.
        """
        while self.trees:
            os.close(self.trees.pop())

    def close(self) -> None:
        self.landed()
        while self.layers:
            os.close(self.layers.pop())
        if self.covers >= 0:
            os.close(self.covers)
            self.covers = -1


class Mounting:
    """
    Mounts *mounts* in the runner *place*.

    Args:
        scratch: the writable folders of the view.
        done: called once, perhaps before this returns: with None, or why it couldn't be done.
    """

    def __init__(self, opener: FolderOpener, place: Carrier, mounts: Mounts, scratch: Sequence[str],
                 done: Callable[[LeewardError | None], None]) -> None:
        self._place, self._mounts, self._scratch = place, mounts, scratch
        self._done: Callable[[LeewardError | None], None] | None = done
        self._asked: PorterAsked | None = None
        try:
            # Folders of the host's view aren't id-mapped: root's daemon shows them with the rights of nobody.
            if place.owner == (os.geteuid(), os.getegid()) or mounts.hides is not None:
                self._carry()
            else:  # the daemon is root's: on the host the sandbox's processes are another user's than the client
                self._asked = opener.map(mounts.trees, mounts.user, place.owner, self._mapped)
        except LeewardError as error:
            self._finish(error)

    def _mapped(self, what: list[int] | LeewardError, _found: list[tuple[int, int]]) -> None:
        self._asked = None
        if isinstance(what, LeewardError):
            self._finish(what)
            return
        try:
            self._carry()
        except LeewardError as error:
            self._finish(error)

    def _carry(self) -> None:
        rows = [{"target": folder.target, "writable": folder.writable, "overlay": folder.overlay, "file": folder.file,
                 "deep": is_deep(folder, self._scratch)} for folder in self._mounts.folders]
        order = {"order": "mount", "mounts": rows, "hides": self._mounts.hides, "home": self._home()}
        self._asked = self._place.carry(order, self._mounts.trees, self._mounted, MOUNT_S,
                                        apart=True)

    def _home(self) -> dict[str, Any] | None:
        home = self._mounts.home
        if home is None:
            return None
        deep = bool(home.path) and is_deep(Folder(home.path, home.path), self._scratch)
        return {"path": home.path, "deep": deep, "texts": home.texts, "hide": home.hide, "protect": home.protect}

    def _mounted(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        self._asked = None
        if self._done is None:
            for fd in fds:
                os.close(fd)
            return
        if self._mounts.home is not None and fds:
            self._mounts.covers = fds.pop()
        self._mounts.layers += fds
        self._finish(LeewardError(f"the folders can't be mounted: {what}") if isinstance(what, LeewardError) else None)

    def _finish(self, error: LeewardError | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            in_any_case(self._mounts.landed, partial(done, error))

    def cancel(self) -> None:
        """
        Its sandbox is over.
        """
        self._done = None
        asked, self._asked = self._asked, None
        in_any_case(*([asked.cancel] if asked is not None else []), self._mounts.landed)


class CoverPlace(Protocol):
    def carry(self, order: Mapping[str, Any], fds: Sequence[int],
              answered: Callable[[Mapping[str, Any] | LeewardError, list[int]], None],
              seconds: float) -> PorterAsked: ...


def hide_names(place: CoverPlace, mounts: Mounts, names: Sequence[str],
               answered: Callable[[Mapping[str, Any] | LeewardError], None]) -> None:
    """
    Cover *names* in an open sandbox, as those were that were hidden from its opening on.

    Raises:
        BadRequest: it has no home of its own, names lie in no mount of it, or it has had too many.
        LeewardError: it can't be begun.
    """
    if mounts.covers < 0:
        raise BadRequest("hide is for sandboxes with a home of their own")
    if mounts.hidden + len(names) > MOST_HIDDEN:
        raise BadRequest(f"more than {MOST_HIDDEN} names were hidden since the sandbox was opened")
    check_names(names, mounts.folders)

    def done(what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if not isinstance(what, LeewardError):
            mounts.hidden += what["made"]
        answered(what)

    place.carry({"order": "cover", "hide": list(names)}, [mounts.covers], done, MOUNT_S)
