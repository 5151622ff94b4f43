"""
The opening of a sandbox that shows folders of the host, and the docks on which clients leave descriptors of these.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client: the folders that it names are compared with its descriptors (crossing/opener.py). A
           connection's own socket takes no descriptor at all. The opener receives those of a dock, in one message, for
           the one request that names the dock. The daemon itself never has one of them open, and doesn't close those
           that stay in a dock: how long that takes is up to the client (loop/closing.py).

A dock is a stream, in which a read of no bytes is the end; a client can't put an empty message before a descriptor.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence

from leeward.errors import BadRequest, Busy, Forbidden, LeewardError, Refused, RequestRejected
from leeward.loop.closing import guarded
from leeward.sandboxes.desk import Desk
from leeward.sandboxes.mounting import Mounts
from leeward.spec import folders as rules
from leeward.spec.folders import FILE_CLOCK, Folder
from leeward.spec.profiles.agent import needless
from leeward.spec.sandbox import View

#: Docks of one connection at once, at most.
MOST_DOCKS = 2


class FolderOpening:
    """
    A request whose folders are being opened before its sandbox, as a ticket.

    Args:
        dock: the dock with the client's descriptors. It is closed here when the opener doesn't need it any more.
        user: uid and gid of the client.
        proceed: opens the sandbox with the mounts, which it then owns; returns a function that cancels the opening.
        refuse: answers the request.
        view: the sandbox's view of the host, if it isn't the daemon's default.
        skip_shown: don't mount folders that the view already shows at the same path.

    Raises:
        Forbidden: the sandbox's processes would have other rights in the folders than the client.
        BadRequest: mounts that no sandbox can have.
        Busy: folders can't be opened now.
    """

    def __init__(self, desk: Desk, dock: socket.socket, folders: Sequence[Folder], user: tuple[int, int],
                 proceed: Callable[[Mounts], Callable[[], None]], refuse: Callable[[Refused], None],
                 view: View | None = None, skip_shown: bool = False) -> None:
        self._close = desk.reactor.closer.close
        self._folders, self._user, self._proceed, self._refuse = tuple(folders), user, proceed, refuse
        self._over = False
        self._dock: socket.socket | None = dock
        self._since = time.clock_gettime_ns(FILE_CLOCK)
        self._take_back: Callable[[], None] | None = None
        try:
            if os.geteuid() not in (0, user[0]):
                raise Forbidden(f"this daemon runs as user {os.geteuid()}, with whose rights user {user[0]} would open"
                                " these folders: use a daemon of your own, or one that root runs")
            rules.check(folders)
            view = desk.view if view is None else view
            self._needless = [skip_shown and needless(folder, view) for folder in folders]
            rules.fits((folder for folder, known in zip(folders, self._needless, strict=True) if not known), view)
            rows = [{"path": folder.path, "target": folder.target, "writable": folder.writable,
                     "overlay": folder.overlay, "file": folder.file} for folder in folders]
            self._take_back = desk.opener.open(dock.fileno(), rows, user[0], self._opened).cancel
        except BaseException:
            self._leave()
            raise

    def _opened(self, what: list[int] | LeewardError, found: list[tuple[int, int]]) -> None:
        self._leave()
        if isinstance(what, LeewardError):
            self._refuse(refusal(what))
            return
        mounts = Mounts(*self._kept(what, found), self._since, [])
        if self._over:
            mounts.close()
            return
        try:
            self._take_back = self._proceed(mounts)
        except (LeewardError, OSError) as error:
            mounts.close()
            self._refuse(refusal(error))

    def _leave(self) -> None:
        """Close the dock. While the opener still had it, this was not its last descriptor."""
        dock, self._dock = self._dock, None
        if dock is not None:
            self._close(dock)

    def _kept(self, trees: list[int], found: list[tuple[int, int]]) -> tuple[
            tuple[Folder, ...], list[int], tuple[int, int], list[tuple[int, int]]]:
        """Return folders, trees, user, devices and inodes of the mounts that are needed. The other trees are closed."""
        rows = []
        for row in zip(self._folders, trees, found, self._needless, strict=True):
            if row[3]:
                os.close(row[1])
            else:
                rows.append(row)
        return tuple(row[0] for row in rows), [row[1] for row in rows], self._user, [row[2] for row in rows]

    def cancel(self) -> None:
        self._over = True
        self._leave()
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()


def refusal(error: Exception) -> Refused:
    """Return *error* as an answer."""
    if isinstance(error, Refused):
        return error
    return RequestRejected(str(error)) if isinstance(error, BadRequest) else Busy(str(error))


class Docks:
    """
    The docks of one connection.

    Args:
        own: adds a number, perhaps negative, to the client's large results that wait: docks have their descriptors.
        close: closes a socket that may hold descriptors of a client, without waiting for them.
    """

    def __init__(self, own: Callable[[int], None], close: Callable[[socket.socket], None]) -> None:
        self._own, self._close = own, close
        self._last = 0
        self._docks: dict[int, socket.socket] = {}

    def make(self) -> tuple[int, int]:
        """
        Make a dock. Returns its number and the client's end, which the caller owns.

        Raises:
            Busy: the connection has too many docks, or no descriptor is left.
        """
        if len(self._docks) >= MOST_DOCKS:
            raise Busy(f"this connection has {MOST_DOCKS} docks already")
        try:
            here, there = socket.socketpair()
        except OSError as error:
            raise Busy(f"no dock can be made: {error.strerror}") from None
        guarded(here)
        self._last += 1
        self._docks[self._last] = here
        self._own(1)
        return self._last, there.detach()

    def take(self, number: int) -> socket.socket:
        """
        Remove a dock and return the daemon's end, which the caller owns from now on.

        Raises:
            BadRequest: there is no dock of that number.
        """
        dock = self._docks.pop(number, None)
        if dock is None:
            raise BadRequest(f"this connection has no dock {number}: mounts need one for each sandbox_open")
        self._own(-1)
        return dock

    def close(self) -> None:
        while self._docks:
            self._own(-1)
            self._close(self._docks.popitem()[1])
