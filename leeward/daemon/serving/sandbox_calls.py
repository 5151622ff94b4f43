"""
Requests about live sandboxes that wait, as tickets, and what ends with their connection.

The broker fetches, a porter in the sandbox reads and changes overlays, the opener opens folders: the daemon opens and
resolves nothing, and passes bodies on unchanged. The folders that a client names are compared with its descriptors
(crossing/opener.py). A connection's own socket takes none: the opener receives those of a dock, in one message, for the
one request that names the dock. The daemon never has one open, and doesn't close those that stay in a dock: how long
that takes is up to the client (loop/closing.py). A dock is a stream, in which a read of no bytes is the end; a client
can't put an empty message before a descriptor.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward._native.memfd import SEALS, memory_file
from leeward.base.dataclass import dataclass
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.closing import guarded
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool.broker import failed
from leeward.daemon.run.porter import PorterRefusal
from leeward.daemon.run.report import INLINE, Arena
from leeward.daemon.run.verdict import bug
from leeward.daemon.sandboxes.copying import FolderCopy
from leeward.daemon.sandboxes.live_sandboxes import LiveSandboxes, SandboxEntry
from leeward.daemon.sandboxes.mounting import LayerChange, Mounts, hide_names, keep, overlay, room
from leeward.daemon.serving.parcel import Parcel, seal
from leeward.errors import BadRequest, Busy, Forbidden, LeewardError, Refused, RequestRejected, SandboxOver
from leeward.spec import folders as rules
from leeward.spec.folders import FILE_CLOCK, Folder
from leeward.spec.limits import OVERFLOW
from leeward.spec.profiles.agent import needless
from leeward.spec.sandbox import View
from leeward.spec.stand_ins import DISABLED
from leeward.wire import sandbox_requests as wire
from leeward.wire.answers import encode_ok

if TYPE_CHECKING:
    from leeward.daemon.run.execution import Execution
    from leeward.daemon.sandboxes.kernel import KernelRequest
    from leeward.daemon.sandboxes.sandbox import FreshJob
    from leeward.daemon.serving.flight import Flight

#: Seconds after which a request that ends a sandbox is answered even if processes are left: before clients give up.
ENDING_S = 4.0

#: Rows before those of things that have ended by themselves are removed.
_ROWS = 64


#: The limits that a request can set for a program, or for a job of a session.
_ADJUSTABLE = ("time", "output", OVERFLOW)


def check_limits(limits: Mapping[str, Any], of: str = "sandbox", what: str = "process") -> None:
    """Check the limits in a request for *what* in an open sandbox or session; BadRequest if one can't be set there."""
    for name in limits:
        if name not in _ADJUSTABLE:
            raise BadRequest(f"limit {name!r:.40} is the {of}'s, asked for when it is opened; a {what} in it can ask"
                             f" for {', '.join(_ADJUSTABLE)}")


class SandboxCall:
    """
    A request that waits for a sandbox, as a ticket: the sandbox isn't idle until the request is answered. *job* is that
    of a request that runs code, once it is taken.
    """

    job: KernelRequest | FreshJob | None = None

    def __init__(self, desk: LiveSandboxes, entry: SandboxEntry, taken_back: Callable[[], object]) -> None:
        self._desk, self._entry, self.taken_back = desk, entry, taken_back
        self.over = False
        desk.busy(entry)

    @property
    def execution(self) -> Execution | None:
        return None if self.job is None else self.job.execution

    def end(self) -> bool:
        """Mark the request as answered. Returns False if it was answered already."""
        if self.over:
            return False
        self.over = True
        self.taken_back, self.job = nothing, None  # what has ended refers to this: its output would wait for a collection
        self._desk.free(self._entry)
        return True

    def cancel(self) -> None:
        taken_back = self.taken_back
        if self.end():
            taken_back()


class SandboxEnding:
    """
    A request that ends a sandbox. It is answered once no process is left, at the latest after ENDING_S: a process can
    hang in the kernel while its file system doesn't answer.
    """

    costs = "connection"

    def __init__(self, reactor: Reactor, answer: Callable[[], None]) -> None:
        self._answer: Callable[[], None] | None = answer
        self._timer = reactor.after(ENDING_S, self.gone)

    def gone(self) -> None:
        answer = self._answer
        self.cancel()
        if answer is not None:
            answer()

    def cancel(self) -> None:
        self._answer = None
        self._timer.cancel()

    def broken(self, _error: Exception) -> None:
        self.cancel()


class FileTicket(SandboxCall):
    """
    A request that somebody else carries out, into a memory file which the answer has with it, and which is owned here
    until then. Busy if that can't be had now.
    """

    costs = "connection"

    def __init__(self, desk: LiveSandboxes, flight: Flight, number: int, entry: SandboxEntry) -> None:
        super().__init__(desk, entry, nothing)
        self._flight, self._number, self._fd = flight, number, -1
        try:
            self.taken_back = self._begin()
        except BaseException:
            self.cancel()
            raise
        flight.wait(number, self)

    def _begin(self) -> Callable[[], object]:
        """Ask for what the request wants. Returns what cancels that."""
        raise NotImplementedError

    def _take_file(self) -> int:
        """Give the memory file to the caller; -1 if there is none."""
        fd, self._fd = self._fd, -1
        return fd

    def _drop(self) -> None:
        fd = self._take_file()
        if fd >= 0:
            os.close(fd)

    def cancel(self) -> None:
        super().cancel()
        self._drop()

    def broken(self, _error: Exception) -> None:
        self.cancel()


@dataclass(frozen=True, slots=True)
class Hold:
    """One thing that ends with the connection, if it still lives and is held."""

    lives: Callable[[], bool]
    end: Callable[[], None]


class Holds:
    """
    What ends with one connection: sandboxes, processes and kernels that it has opened as `held`. The kernel closes the
    connections of a program that has ended, by whatever signal, so this needs no help of the program.
    """

    __slots__ = ("_most", "_rows")

    def __init__(self) -> None:
        self._rows: list[Hold] = []
        self._most = _ROWS

    def add(self, hold: Hold) -> None:
        if len(self._rows) >= self._most:
            self._rows = [each for each in self._rows if each.lives()]
            self._most = max(_ROWS, 2 * len(self._rows))
        self._rows.append(hold)

    def __bool__(self) -> bool:
        return any(each.lives() for each in self._rows)

    def end(self) -> None:
        rows, self._rows = self._rows, []
        in_any_case(*(each.end for each in rows if each.lives()))


class FetchCall(FileTicket):
    """A fetch. Busy if the user has too many, or there is no broker or memory; Refused if the sandbox is over."""

    def __init__(self, desk: LiveSandboxes, flight: Flight, request: wire.SandboxFetch, entry: SandboxEntry) -> None:
        self._request = request
        super().__init__(desk, flight, request.id, entry)

    def _begin(self) -> Callable[[], object]:
        request, sandbox = self._request, self._entry.sandbox.sandbox
        lease = sandbox.lease
        if not sandbox.facts.key.egress:
            self._desk.reactor.soon(partial(self._answered, failed(DISABLED, "disabled", sent=False)))
            return nothing
        about: dict[str, object] = {"url": request.url, "method": request.method,
                                    "headers": [list(each) for each in request.headers]}
        body: Arena | None = None
        try:
            self._fd = memory_file("leeward_results")
            body = seal([request.body]) if request.body else None
            fds = [self._fd, *([body.fd] if body is not None else [])]
            return self._flight.server.fetch(lease, about, fds, self._flight.user, self._answered)
        except OSError as error:
            raise Busy(f"no memory file can be made: {error.strerror}") from None
        finally:
            if body is not None:
                body.close()

    def _answered(self, answer: Mapping[str, Any]) -> None:
        if self.end():
            self._flight.deliver(self._number, self._parcel(answer))
        else:
            self._drop()

    def _parcel(self, answer: Mapping[str, Any]) -> Parcel:
        """Return the answer. A large body is sent beside it in a memory file, which is sealed against changes."""
        fd = self._take_file()
        if fd < 0:
            return Parcel(memoryview(encode_ok(self._number, answer)))
        arena = Arena(fd, 0)
        try:
            if "failed" not in answer:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
                arena.size = os.fstat(fd).st_size
            if arena.size > INLINE:
                answer = {**answer, "body": [0, 0, arena.size], "arenas": [arena.size]}
                return Parcel(memoryview(encode_ok(self._number, answer)), [arena], weight=1)
            if "failed" not in answer:
                answer = {**answer, "body": os.pread(fd, arena.size, 0)}
        except OSError as error:
            answer = failed(f"HTTP error: the response can't be handed on: {error.strerror}")
        arena.close()
        return Parcel(memoryview(encode_ok(self._number, answer)))


#: Seconds that a walk, and one piece of a file, may take.
DIFF_S, READ_S = 60.0, 20.0
#: Seconds in which the end of a sandbox is known after that of a process in it, and between two looks.
SETTLE_S, _LOOK_S = 1.0, 0.01

OverlayChange = wire.OverlayCheckpoint | wire.OverlayRestore | wire.OverlayDiscard | wire.SandboxHide


class OverlayCall(FileTicket):
    """A request that reads an overlay."""

    def __init__(self, desk: LiveSandboxes, flight: Flight, request: wire.OverlayDiff | wire.OverlayRead,
                 entry: SandboxEntry) -> None:
        self._request = request
        super().__init__(desk, flight, request.id, entry)

    def _begin(self) -> Callable[[], object]:
        request, sandbox, mounts = self._request, self._entry.sandbox.sandbox, _mounts(self._entry)
        number, layers = overlay(sandbox, mounts, request.target)
        order: dict[str, Any] = {"order": "diff", "number": number}
        if isinstance(request, wire.OverlayRead):
            order |= {"order": "read", "path": request.path, "offset": request.offset, "paths": request.paths}
        sandbox.check_unheld()
        try:
            self._fd = memory_file("leeward_results")
            return sandbox.carry(order, [*layers, self._fd], self._answered,
                                 READ_S if isinstance(request, wire.OverlayRead) else DIFF_S).cancel
        except (LeewardError, OSError) as error:
            raise Busy(f"the overlay can't be looked at now: {error}") from None

    def _answered(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if isinstance(what, LeewardError):
            PorterFailure(self._desk, self._entry, what, self._refuse)
            return
        if not self.end():
            self._drop()
            return
        fd = self._take_file()
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        size = os.fstat(fd).st_size
        arena = Arena(fd, size)
        if not size:
            arena.close()
        answer = {"size": size, **({"arenas": [size]} if size else {})}
        self._flight.deliver(self._number, Parcel(memoryview(encode_ok(self._number, answer)),
                                                     [arena] if size else [], weight=1 if size else 0))

    def _refuse(self, why: Refused) -> None:
        self._drop()
        if self.end():
            self._flight.refuse(self._number, why)


class ConnectCall(SandboxCall):
    """A connection to a server in the sandbox, whose socket the answer has with it. Raises as LiveSandbox.connect."""

    costs = "connection"

    def __init__(self, desk: LiveSandboxes, flight: Flight, request: wire.SandboxConnect, entry: SandboxEntry) -> None:
        if flight.kept.wanted:
            raise BadRequest("a connection is a descriptor, and this client takes none (keep_results)")
        super().__init__(desk, entry, nothing)
        self._flight, self._request = flight, request
        try:
            entry.sandbox.sandbox.connect(request.port, self._answered)
        except BaseException:
            self.end()
            raise
        flight.wait(request.id, self)

    def _answered(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        """Hand the socket on, or close it if nobody waits for it any more."""
        if isinstance(what, LeewardError):
            PorterFailure(self._desk, self._entry, what, self._refuse)
        elif self.end():
            if fds:
                self._flight.server.watcher.port_connected(self._entry.user, self._entry.name, self._request.port)
            self._flight.deliver(self._request.id, Parcel(memoryview(encode_ok(self._request.id, {"socket": bool(fds)})),
                                                         [Arena(fd, 0) for fd in fds], weight=len(fds)))
        else:
            for fd in fds:
                os.close(fd)

    def _refuse(self, why: Refused) -> None:
        if self.end():
            self._flight.refuse(self._request.id, why)

    def broken(self, _error: Exception) -> None:
        self.cancel()


class CopyCall(SandboxCall):
    """
    The files of *source*, made in the sandbox of *entry*. RequestRejected if one of both has more than its own files, and
    changes of the same folders of the host.
    """

    def __init__(self, desk: LiveSandboxes, flight: Flight, request: wire.SandboxCopyFiles, entry: SandboxEntry,
                 source: SandboxEntry) -> None:
        self._mounts = _mounts(entry), _mounts(source)
        mine, theirs = (each.sandbox.sandbox.terms.view.root for each in (entry, source))
        if (mine and mine.layers) != (theirs and theirs.layers):
            raise RequestRejected("the sandbox to copy has another image, or its name stands for another one by now")
        if source is entry:
            raise BadRequest("source is the sandbox itself")
        layers = self._mounts[0].check_copies(self._mounts[1])
        self._flight, self._number, self._source = flight, request.id, source
        super().__init__(desk, entry, nothing)
        desk.busy(source)
        self._set_changing(True)
        try:
            self.taken_back = FolderCopy(source.sandbox.sandbox, entry.sandbox.sandbox, self._answered,
                                         self._mounts[0].folders, layers).cancel
        except (LeewardError, OSError) as error:
            self.end()
            raise Busy(f"the files can't be copied now: {error}") from None
        flight.wait(request.id, self)

    def end(self) -> bool:
        """As every call; the other sandbox may be idle, too."""
        if not super().end():
            return False
        self._set_changing(False)
        self._desk.free(self._source)
        return True

    def _set_changing(self, changing: bool) -> None:
        for mounts in self._mounts:
            mounts.changing = changing

    def _answered(self, what: int | LeewardError) -> None:
        if isinstance(what, LeewardError):
            PorterFailure(self._desk, self._entry, what, self._refuse)
        elif self.end():
            mine, theirs = self._mounts
            mine.since = min(mine.since, theirs.since)  # a later change on the host is one that the copy doesn't know
            self._flight.answer(self._number, {"made": what})

    def _refuse(self, why: Refused) -> None:
        if self.end():
            self._flight.refuse(self._number, why)


class PorterFailure:
    """
    Calls *tell* once, perhaps at once, with why a porter hasn't done its order. If it ended without an answer, that
    waits until the daemon knows whether the sandbox has ended, of which it hears a moment later.
    """

    costs = "connection"

    def __init__(self, desk: LiveSandboxes, entry: SandboxEntry, error: LeewardError,
                 tell: Callable[[Refused], None]) -> None:
        self._desk, self._entry, self._error, self._tell = desk, entry, error, tell
        self._until = desk.reactor.now() + (0.0 if isinstance(error, PorterRefusal) else SETTLE_S)
        self._look()

    def _look(self) -> None:
        why = _why_failed(self._desk, self._entry, self._error)
        if isinstance(why, SandboxOver) or self._desk.reactor.now() >= self._until:
            self._tell(why)
        else:
            self._desk.reactor.after(_LOOK_S, self._look)

    def broken(self, error: Exception) -> None:
        self._tell(Busy(bug(error)))


def change_overlay(desk: LiveSandboxes, flight: Flight, request: OverlayChange, entry: SandboxEntry) -> None:
    """
    Make or restore a checkpoint of an overlay, discard changes, or hide names; BadRequest or Refused if it can't be
    done. It is completed even if its connection ends, because a partial result would be worse.
    """
    sandbox, mounts, reactor = entry.sandbox.sandbox, _mounts(entry), desk.reactor
    call: SandboxCall | None = None
    fields: dict[str, Any] = {}

    def answered(what: Mapping[str, Any] | LeewardError) -> None:
        if isinstance(what, LeewardError) and not isinstance(what, Refused):
            PorterFailure(desk, entry, what, answered)
        elif call is None or not call.end():
            return
        elif isinstance(what, Refused):
            flight.refuse(request.id, what)
        else:
            flight.answer(request.id, fields)

    try:
        if isinstance(request, wire.SandboxHide):
            hide_names(sandbox, mounts, request.hide, answered)
        elif isinstance(request, wire.OverlayCheckpoint):
            fields["name"] = keep(sandbox, mounts, request.target, request.name, answered)
        elif isinstance(request, wire.OverlayRestore):
            if request.name not in mounts.kept.get(request.target, ()):
                overlay(sandbox, mounts, request.target)
                raise RequestRejected(f"{request.target!r:.80} has no checkpoint {request.name!r}")
            LayerChange(reactor, sandbox, mounts, request.target,
                       {"order": "restore", "name": request.name, "most": room(sandbox, request.target)}, answered)
        else:
            LayerChange(reactor, sandbox, mounts, request.target,
                       {"order": "discard", "paths": list(request.paths), "most": room(sandbox, request.target)}, answered)
    except (BadRequest, Refused):
        raise
    except LeewardError as error:
        raise Busy(f"the folders of the sandbox can't be changed now: {error}") from None
    call = SandboxCall(desk, entry, nothing)
    flight.wait(request.id, call)


def _mounts(entry: SandboxEntry) -> Mounts:
    held = entry.sandbox
    if held.mounts is None and held.sandbox.terms.view.root is not None:
        held.mounts = Mounts()  # its root is an overlay, with checkpoints
    return held.mounts or Mounts()


def _why_failed(desk: LiveSandboxes, entry: SandboxEntry, error: LeewardError) -> Refused:
    try:
        desk.get(entry.name, entry.user)
    except SandboxOver as over:
        return over
    return RequestRejected(str(error))


#: Docks of one connection at once, at most.
MOST_DOCKS = 2


class FolderOpening:
    """
    A request whose folders are being opened before its sandbox. *proceed* opens that with the mounts, which it then
    owns, and returns what cancels it; *view* is the sandbox's if it isn't the default; folders that it shows anyway
    aren't mounted if *skip_shown*. Forbidden if the sandbox would have other rights in them than *user*, BadRequest for
    mounts that no sandbox can have, Busy if they can't be opened now. The *dock* with the descriptors is closed here.
    *home* is the path of the sandbox's own home folder, or "".
    """

    def __init__(self, desk: LiveSandboxes, dock: socket.socket, folders: Sequence[Folder], user: tuple[int, int],
                 proceed: Callable[[Mounts], Callable[[], None]], refuse: Callable[[Refused], None],
                 view: View | None = None, skip_shown: bool = False, home: str = "") -> None:
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
            rules.check(folders, home)
            view = desk.view if view is None else view
            self._needless = [skip_shown and needless(folder, view) for folder in folders]
            rules.fits((folder for folder, known in zip(folders, self._needless, strict=True) if not known), view,
                       home)
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
        mounts = self._mounts(what, found)
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

    def _mounts(self, trees: list[int], found: list[tuple[int, int]]) -> Mounts:
        """Return the mounts that are needed. The other trees are closed."""
        mounts = Mounts(user=self._user, since=self._since)
        for folder, tree, where, is_needless in zip(self._folders, trees, found, self._needless, strict=True):
            if is_needless:
                os.close(tree)
            else:
                mounts.folders += (folder,)
                mounts.trees.append(tree)
                mounts.found.append(where)
        return mounts

    def cancel(self) -> None:
        self._over = True
        self._leave()
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()


def refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    return RequestRejected(str(error)) if isinstance(error, BadRequest) else Busy(str(error))


class Docks:
    """One connection's docks, on which its client leaves descriptors of folders; they count as large results (*own*)."""

    def __init__(self, own: Callable[[int], None], close: Callable[[socket.socket], None]) -> None:
        self._own, self._close = own, close
        self._last = 0
        self._docks: dict[int, socket.socket] = {}

    def make(self) -> tuple[int, int]:
        """Make a dock. Returns its number and the client's end, which the caller owns; Busy if there are too many."""
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
        """Remove a dock and return our end, which the caller owns from now on; BadRequest if there is none of that number."""
        dock = self._docks.pop(number, None)
        if dock is None:
            raise BadRequest(f"this connection has no dock {number}: mounts need one for each sandbox_open")
        self._own(-1)
        return dock

    def drop(self, number: int) -> None:
        """Close a dock, if it is there: its request was refused, and the next attempt has another one."""
        if number in self._docks:
            self._close(self.take(number))

    def close(self) -> None:
        for number in tuple(self._docks):
            self.drop(number)
