"""
The opener, seen from the daemon: started once the daemon is ready, sent orders, reaped when it has died, and started
again for the next order. An order is answered once: by the opener's child that carries it out, or here after LATE_S.

Owns: the process, its channel, and one socket for each order that has no answer yet.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack

from leeward._native.passing import receive_whole
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.run.verdict import bug
from leeward.daemon.worker import bare
from leeward.errors import BadRequest, Busy, LeewardError
from leeward.spec import own_sockets

if TYPE_CHECKING:
    import subprocess

#: Seconds for an answer: the deadline of the child itself, and the time for its start on a busy machine.
LATE_S = 10.0
#: Orders of all users at once, and of one user but root, at most; each has a process.
MOST_ORDERS, MOST_OF_USER = 32, 8

_ROOM, _FDS = 1 << 16, 64
#: Called with descriptors of the trees, which the callee owns, and of each its device and inode, or with `show_host` its
#: target; or with the failure.
Opened = Callable[[list[int] | LeewardError, list[Any]], None]


class Opener:
    """The opener's process, and its orders. *own* returns the daemon's own sockets, which can't be mounted."""

    def __init__(self, reactor: Reactor, own: Callable[[], Sequence[str]]) -> None:
        self._reactor, self._own = reactor, own
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._orders: set[OpenerOrder] = set()

    def begin(self) -> None:
        """Start the process in advance: it takes as long as opening a dozen sandboxes. Else the first order does."""
        with contextlib.suppress(OSError):
            self._there()

    def open(self, dock: int, folders: Sequence[Mapping[str, Any]], user: int, opened: Opened) -> OpenerOrder:
        """
        Clone *folders* (fields of `spec.folders.Folder`), whose descriptors a client of uid *user* has sent on the
        other end of the socket *dock*, which stays the caller's. Its file system may never answer, and others have to
        get a turn: Busy if the opener can't take an order now, or no further one of this user.
        """
        if user and sum(order.user == user for order in self._orders) >= MOST_OF_USER:
            raise Busy(f"{MOST_OF_USER} sandboxes of user {user} are having folders opened already")
        registries = [[uid, folder] for uid in {0, os.geteuid(), user} for folder in own_sockets.folders_of(uid)]
        return self._ask({"order": "open", "folders": list(folders), "own": list(self._own()), "user": user,
                          "registries": registries}, [dock], opened, user)

    def map(self, trees: Sequence[int], user: tuple[int, int], host: tuple[int, int],
            mapped: Opened) -> OpenerOrder:
        """Show the files of *user*, a uid and a gid, in *trees* as files of *host*; Busy."""
        return self._ask({"order": "map", "ids": [*user, *host]}, trees, mapped)

    def show_host(self, paths: Sequence[str], trees: Sequence[int], host: tuple[int, int],
                  shown: Opened) -> OpenerOrder:
        """Clone the folders *paths*, and show root's files there and in *trees* as files of *host*; Busy."""
        return self._ask({"order": "host", "paths": list(paths), "ids": [0, 0, *host]}, trees, shown)

    def _ask(self, order: Mapping[str, Any], fds: Sequence[int], done: Opened,
             user: int = 0) -> OpenerOrder:
        if len(self._orders) >= MOST_ORDERS:
            raise Busy(f"{MOST_ORDERS} sandboxes are having folders opened already")
        try:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise Busy(f"a folder can't be opened now: {error.strerror}") from None
        with there:
            try:
                self._send(msgpack.packb(order), [there.fileno(), *fds])
            except OSError as error:
                here.close()
                raise Busy(f"a folder can't be opened now: {error.strerror}") from None
        made = OpenerOrder(self._reactor, here, done, self._orders, user)
        self._orders.add(made)
        return made

    def _send(self, data: bytes, fds: Sequence[int]) -> None:
        try:
            socket.send_fds(self._there(), [data], fds)
        except (BrokenPipeError, ConnectionResetError):  # the opener has ended: try again with another one
            self._end()
            socket.send_fds(self._there(), [data], fds)

    def _there(self) -> socket.socket:
        if self._channel is None:
            self._process, self._channel = bare.start(
                lambda control: f"from leeward.crossing import opener\nopener.main({control})\n")
            self._reactor.watch(self._channel.fileno(), READ, self._gone)
        return self._channel

    def _gone(self, _events: int) -> None:
        self._end()  # the opener sends nothing on the channel, so this is its end

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if channel is not None:
            in_any_case(partial(self._reactor.forget, channel.fileno()), channel.close)
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Cancel all orders, and end the process: the daemon ends."""
        in_any_case(*(order.cancel for order in list(self._orders)), self._end)


class OpenerOrder:
    """One order that has no answer yet."""

    costs = "connection"

    def __init__(self, reactor: Reactor, here: socket.socket, done: Opened, among: set[OpenerOrder],
                 user: int) -> None:
        self.user = user
        self._reactor, self._socket, self._among = reactor, here, among
        self._done: Opened | None = done
        here.setblocking(False)
        self._timer = reactor.after(LATE_S, self._late)
        reactor.watch(here.fileno(), READ, self._answered)

    def _answered(self, _events: int) -> None:
        try:
            data, fds = receive_whole(self._socket, _ROOM, _FDS)
        except BlockingIOError:
            return
        if not data:
            self._finish(Busy("a folder can't be opened: its file system doesn't answer, or no descriptor is left"))
            return
        answer = msgpack.unpackb(data)
        if "error" in answer:
            kind: type[LeewardError] = BadRequest if answer["asked"] else LeewardError
            self._finish(kind(answer["error"]))
        else:
            self._finish(fds, [tuple(row) for row in answer.get("found", ())])

    def _late(self) -> None:
        self._finish(Busy(f"a folder can't be opened: its file system didn't answer within {LATE_S:.0f} s"))

    def _finish(self, what: list[int] | LeewardError, found: list[Any] | None = None) -> None:
        done, self._done = self._done, None
        self._release()
        if done is not None:
            done(what, found or [])
        elif isinstance(what, list):
            for fd in what:
                os.close(fd)

    def cancel(self) -> None:
        """Forget the order: its result isn't needed any more."""
        self._done = None
        self._release()

    def _release(self) -> None:
        self._among.discard(self)
        self._timer.cancel()
        if self._socket.fileno() >= 0:
            in_any_case(partial(self._reactor.forget, self._socket.fileno()), self._socket.close)

    def broken(self, error: Exception) -> None:
        self._finish(LeewardError(bug(error)))
