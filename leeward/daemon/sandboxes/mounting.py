"""
Folders of the host in a sandbox: opened for its client, with owners mapped for its processes, mounted, and changed.

Owns: the detached mounts of the folders (trees), until they are attached or given up; then the folders with layers.

Theory of operation. A layer can't be changed below a mounted overlay, so the porter unmounts the overlay, changes the
layer and mounts it again. Meanwhile no process may be in the sandbox. The change is refused while a process runs that a
client has started, a kernel included. Background processes that commands have left are ended, and so is the process for
file calls; porters are waited for; the sandbox starts none until its own has answered. The system's kernel decides in
the end: it doesn't unmount an overlay that is in use. If a porter ends without an answer during a change, the layer's
state is unknown, and the sandbox is ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.run.porter import PorterRefusal
from leeward.daemon.run.verdict import bug
from leeward.errors import BadRequest, Busy, LeewardError, RequestRejected
from leeward.isolation.mounts import ROOT
from leeward.spec.folders import Folder, is_deep, within
from leeward.spec.profiles.agent import HomePlan, check_names
from leeward.spec.profiles.shell import owners_own

if TYPE_CHECKING:
    from leeward.daemon.pool.sessions import Cancellable
    from leeward.daemon.run.live_runner import LiveRunner
    from leeward.daemon.run.porter import PorterOrder
    from leeward.daemon.sandboxes.sandbox import LiveSandbox
    from leeward.daemon.worker.opener import Opener

#: Seconds that the mounts of one sandbox may take; and names that a sandbox may have hidden after its opening, each of
#: which is one more mount for the kernel to keep.
MOUNT_S, MOST_HIDDEN = 5.0, 2048


@dataclass(slots=True)
class Mounts:
    """
    The mounts of a sandbox. It owns `trees`, one for each folder; `layers`, once mounted, one for each overlay; and
    `covers`, from which hidden names are covered, once a home is mounted.

    `user` is the client's uid and gid, `found` device and inode of each folder, `since` a time before they were opened,
    in ns by the clock of file systems. `kept` has the names of each overlay's copies by target. `hides` are names that
    a view of the host doesn't show; None for other views; of root's, `host` are folders beside, for which the first of
    `trees` are, and `cwd` is one that has to be readable. `changing`: an overlay is being copied or changed, one at a
    time, because the files that this makes on the way have fixed names.
    """

    folders: tuple[Folder, ...] = ()
    trees: list[int] = field(default_factory=list)
    user: tuple[int, int] = (0, 0)
    found: list[tuple[int, int]] = field(default_factory=list)
    since: int = 0
    layers: list[int] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)
    changing: bool = False
    hides: Sequence[tuple[str, Sequence[str]]] | None = None
    host: tuple[Folder, ...] = ()
    cwd: str = ""
    home: HomePlan | None = None
    covers: int = -1
    hidden: int = 0

    def layer(self, target: str) -> int:
        """The folder, still owned here, with the layers of the overlay at *target*; BadRequest if there is none."""
        overlays = [folder.target for folder in self.folders if folder.overlay]
        if target not in overlays or len(self.layers) != len(overlays):
            raise BadRequest(f"{target!r:.80} is no overlay of this sandbox's"
                             + (f"; these are: {', '.join(overlays)}" if overlays else ": it was opened without one"))
        return self.layers[overlays.index(target)]

    def number(self, target: str) -> int:
        """The number of the overlay at *target*; BadRequest as `layer`."""
        self.layer(target)
        return [folder.target for folder in self.folders].index(target)

    def check_still(self) -> None:
        """Check that no overlay is being copied or changed; Busy if one is."""
        if self.changing:
            raise Busy("an overlay of the sandbox is being kept or changed")

    def check_copies(self, source: Mounts) -> list[int]:
        """The layers of *source*, if its overlays can be copied into those here. RequestRejected; Busy if not now."""
        for each in (self, source):
            each.check_still()
            hosts = each.home is not None or each.hides is not None
            if hosts or any(folder.writable for folder in each.folders):
                raise RequestRejected("a sandbox that has a home, or writes to folders of the host, can't be copied")
        mine, theirs = ([(folder.target, folder.overlay) for folder in each.folders] for each in (self, source))
        if (mine, self.found) != (theirs, source.found):
            raise RequestRejected("the sandbox to copy shows other folders of the host")
        overlays = [folder.target for folder in self.folders if folder.overlay]
        return [source.layer(target) for target in overlays if self.layer(target) >= 0]

    def info(self) -> list[Mapping[str, Any]]:
        return [{"path": folder.path, "target": folder.target, "writable": folder.writable, "overlay": folder.overlay,
                 "file": folder.file, "device": device, "inode": inode, "since": self.since,
                 **({"checkpoints": list(self.kept.get(folder.target, ()))} if folder.overlay else {})}
                for folder, (device, inode) in zip(self.folders, self.found, strict=True)]

    def landed(self) -> None:
        """Close the trees: they are mounted, or mounting has failed."""
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
    Mounts *mounts* in the runner *place*, by a porter, a copy of the keeper, which is made while the opener maps the
    owners of the folders' files. *scratch* are the view's writable folders. *done* is called once, perhaps before this
    returns: with None or the error.
    """

    def __init__(self, opener: Opener, place: LiveRunner, mounts: Mounts, scratch: Sequence[str],
                 done: Callable[[LeewardError | None], None]) -> None:
        self._place, self._mounts, self._scratch = place, mounts, scratch
        self._done: Callable[[LeewardError | None], None] | None = done
        self._mapping: Cancellable | None = None
        self._porter: PorterOrder | None = None
        try:
            known = place.owner == (os.geteuid(), os.getegid())
            if not known:  # the daemon is root's: the sandbox's processes are another user of the host than the client
                self._mapping = (opener.map(mounts.trees, mounts.user, place.owner, self._mapped)
                                 if mounts.hides is None else
                                 opener.show_host(own_folders(), mounts.trees, place.owner, self._mapped))
            self._porter = self._place.carry(self._order() if known else None, self._mounts.trees if known else (),
                                             self._mounted, MOUNT_S, apart=True)
        except LeewardError as error:
            self._finish(error)

    def _mapped(self, what: list[int] | LeewardError, found: list[Any]) -> None:
        self._mapping = None
        try:
            if isinstance(what, LeewardError):
                raise what
            self._mounts.host = tuple(Folder(path, path) for path, in found)
            self._mounts.trees[:0] = what
            if self._porter is not None:
                self._porter.give(self._order(), self._mounts.trees)
        except LeewardError as error:
            self._finish(error)

    def _order(self) -> dict[str, Any]:
        rows = [{"target": folder.target, "writable": folder.writable, "overlay": folder.overlay, "file": folder.file,
                 "deep": is_deep(folder, self._scratch)} for folder in (*self._mounts.host, *self._mounts.folders)]
        return {"order": "mount", "mounts": rows, "hides": self._mounts.hides, "home": self._home(),
                "cwd": self._mounts.cwd}

    def _home(self) -> dict[str, Any] | None:
        home = self._mounts.home
        if home is None:
            return None
        deep = bool(home.path) and is_deep(Folder(home.path, home.path), self._scratch)
        return {"path": home.path, "deep": deep, "texts": home.texts, "hide": home.hide, "protect": home.protect,
                "pin": home.pin}

    def _mounted(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        self._porter = None
        if self._done is None:
            for fd in fds:
                os.close(fd)
            return
        if self._mounts.home is not None and self._mounts.home.path and fds:
            self._mounts.covers = fds.pop()
        self._mounts.layers += fds
        self._finish(LeewardError(f"the folders can't be mounted: {what}") if isinstance(what, LeewardError) else None)

    def _finish(self, error: LeewardError | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            in_any_case(self._forget, self._mounts.landed, partial(done, error))

    def cancel(self) -> None:
        """Give up the mounting: the sandbox is over. *done* isn't called."""
        self._done = None
        in_any_case(self._forget, self._mounts.landed)

    def _forget(self) -> None:
        """Cancel what hasn't answered yet: the mapping, the porter, or both."""
        asked = [each for each in (self._mapping, self._porter) if each is not None]
        self._mapping = self._porter = None
        in_any_case(*(each.cancel for each in asked))


def own_folders() -> list[str]:
    """What in the root of the host root's sandbox reads as root does."""
    return [path for name in sorted(os.listdir("/")) if owners_own(path := f"/{name}")]


def hide_names(place: LiveSandbox, mounts: Mounts, names: Sequence[str],
               answered: Callable[[Mapping[str, Any] | LeewardError], None]) -> None:
    """
    Hide *names* in an open sandbox, as at its opening. BadRequest without a home of its own, for names in none of its
    mounts, or too many; Busy as `check_unheld`, LeewardError if the porter can't be started.
    """
    place.check_unheld()
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

    tops = [(folder.target, device, None if folder.overlay else inode)
            for folder, (device, inode) in zip(mounts.folders, mounts.found, strict=True)
            if any(within(name, folder.target) for name in names)]
    place.carry({"order": "cover", "hide": list(names), "tops": tops}, [mounts.covers], done, MOUNT_S)


#: Copies of one overlay.
MOST_KEPT = 8
#: Seconds that a copy or a change may take; that killed processes have to end; and between two checks of the latter.
COPY_S, _QUIET_S, _LOOK_S = 60.0, 1.0, 0.005

Answered = Callable[[Mapping[str, Any] | LeewardError], None]


def overlay(sandbox: LiveSandbox, mounts: Mounts, target: str) -> tuple[int | str, list[int]]:
    """
    The number of the overlay at *target*, by which its layers are named, and a descriptor of them, which others own; an
    image's root is one of the runner's own. BadRequest if there is none.
    """
    if target == "/" and sandbox.terms.view.root is not None:
        return ROOT, [sandbox.layers]
    return mounts.number(target), [mounts.layer(target)]


def room(sandbox: LiveSandbox, target: str) -> int:
    """Bytes of all files and copies of them, beside which a further copy may be made."""
    root, limits = sandbox.terms.view.root, sandbox.facts.limits
    return limits.files if target == "/" and root is not None and root.disk else limits.memory // 2


def keep(sandbox: LiveSandbox, mounts: Mounts, target: str, name: str, answered: Answered) -> str:
    """
    Copy the upper folder of the overlay at *target*, while processes may go on. Returns the copy's name: *name* or, if
    empty, the first free number. *answered* is called once, unless this raises. BadRequest if there is no overlay,
    RequestRejected if it has MOST_KEPT copies, Busy during another change, LeewardError if the porter can't be started.
    """
    number, fds = overlay(sandbox, mounts, target)
    names = mounts.kept.setdefault(target, [])
    mounts.check_still()
    name = name or next(str(number) for number in range(1, MOST_KEPT + 2) if str(number) not in names)
    if name not in names and len(names) >= MOST_KEPT:
        raise RequestRejected(f"{target!r:.80} has {len(names)} checkpoints, all that it may have; one with the name"
                              " of an old one takes its place")

    def carried(what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        mounts.changing = False
        _close(fds)
        if not isinstance(what, LeewardError) and name not in names:
            names.append(name)
        answered(what)

    sandbox.carry({"order": "keep", "number": number, "name": name, "most": room(sandbox, target)}, fds, carried, COPY_S)
    mounts.changing = True
    return name


class LayerChange:
    """
    Does *order* with the overlay at *target* once the sandbox's leftover processes have ended; *answered* is called
    once, later. BadRequest if there is no overlay, RequestRejected while clients' processes run, Busy during another
    change.
    """

    costs = "session"

    def __init__(self, reactor: Reactor, sandbox: LiveSandbox, mounts: Mounts, target: str, order: Mapping[str, Any],
                 answered: Answered) -> None:
        number, _ = overlay(sandbox, mounts, target)
        if sandbox.running:
            raise RequestRejected(f"{sandbox.running} processes and kernels run in the sandbox: end them first")
        mounts.check_still()
        self._reactor, self._sandbox, self._mounts, self._target = reactor, sandbox, mounts, target
        self._order = {**order, "number": number, "target": target}
        self._answered: Answered | None = answered
        sandbox.hold()
        mounts.changing = True
        self._until = reactor.now() + _QUIET_S
        reactor.after(0.0, self._look)

    def _look(self) -> None:
        present = self._sandbox.present
        if present and (self._sandbox.porters or self._reactor.now() < self._until):
            self._reactor.after(_LOOK_S, self._look)
        elif present:
            self._finish(RequestRejected(f"{present} processes of the sandbox don't end"))
        else:
            try:
                self._sandbox.carry(self._order, overlay(self._sandbox, self._mounts, self._target)[1], self._done, COPY_S)
            except LeewardError as error:
                self._finish(error)

    def _done(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        if fds:  # of an image's root, whose layers are mounted now
            self._sandbox.layers = fds.pop()
        _close(fds)
        if isinstance(what, PorterRefusal) or (isinstance(what, Mapping) and "refused" in what):
            self._finish(RequestRejected(str(what) if isinstance(what, PorterRefusal) else what["refused"]))
            return
        if isinstance(what, LeewardError):
            self._sandbox.lost(f"its overlay was being changed: {what}")
        self._finish(what)

    def _finish(self, what: Mapping[str, Any] | LeewardError) -> None:
        answered, self._answered = self._answered, None
        self._mounts.changing = False
        self._sandbox.release()
        if answered is not None:
            answered(what)

    def broken(self, error: Exception) -> None:
        """Called by the barrier: a callback of this object has raised *error*. Ends the sandbox, and answers the request."""
        if self._answered is not None:
            self._sandbox.lost(bug(error))
            self._finish(Busy(bug(error)))


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
