"""
What sandboxes write to an image's root where that lies on a disk: on a tmpfs, Linux before 6.6 keeps no user attributes,
by which an overlay marks folders that cover others.

Owns: a folder in `uppers`, beside the images' layers, locked while the daemon lives; in it one folder for each keeper, and
there one for each of its runners; and the process that removes those that nobody needs, one at a time.

Theory of operation. A keeper gets a mount of its folder, whose runners make `mounts.NEXT` in it, one after the other. When
a runner is ready its folder is renamed to its number. What is over is renamed into `gone`, which a process of its own
empties: it may have a million names. The folders of daemons that have crashed hold no lock, and go the same way.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from leeward.base.closing import OwnedFd
from leeward.base.file_locks import THERE, locked
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.worker.opener import Opener, OpenerOrder
from leeward.daemon.worker.orphans import STARTED
from leeward.errors import LeewardError
from leeward.isolation.mounts import NEXT
from leeward.spec.folders import Folder

_GONE, _LOCK = "gone", "lock"
#: Empties `gone`, however deep and of whatever modes, until nothing is left; neither program follows links.
_EMPTY = 'cd -- "$0" && while set -- * && [ -e "$1" ]; do chmod -R u+rwX -- "$@"; rm -rf -- "$@" || exit; done'
_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class Uppers:
    """Those of this daemon, in a new folder below *place*; OSError if it can't be made."""

    costs = "worker"

    def __init__(self, reactor: Reactor, opener: Opener, place: str) -> None:
        self._reactor, self._opener = reactor, opener
        self._names = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        os.makedirs(place, 0o700, exist_ok=True)
        self._folder = os.path.join(place, secrets.token_hex(8))
        self._gone = os.path.join(self._folder, _GONE)
        with OwnedFd(locked(os.path.join(place, _LOCK), wait=True)):
            others = [entry for entry in os.listdir(place) if entry != _LOCK]
            os.makedirs(self._gone, 0o700)
            self._fd = locked(self._folder, THERE)
            for entry in others:
                self._take_over(os.path.join(place, entry))
        self._empty()

    def _take_over(self, path: str) -> None:
        """Remove the folder of a daemon that is gone."""
        try:
            os.close(locked(path, THERE))
        except OSError:
            return
        os.rename(path, os.path.join(self._gone, str(next(self._names))))

    def new(self, ids: tuple[int, int]) -> Upper:
        """A folder for a keeper whose files belong to *ids* of the host; OSError."""
        path = os.path.join(self._folder, str(next(self._names)))
        os.mkdir(path, 0o700)
        if ids != (os.geteuid(), os.getegid()):
            os.chown(path, *ids)
        return Upper(self, path)

    def mount(self, path: str, done: Callable[[list[int] | LeewardError, object], None]) -> OpenerOrder:
        """Have a detached mount of the folder *path* made, which *done* owns; Busy, OSError."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            with OwnedFd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
                socket.send_fds(here, [b"-"], [fd])
            return self._opener.open(there.fileno(), [asdict(Folder(path, path, writable=True))], 0, done)

    def remove(self, path: str) -> None:
        """Remove the folder *path*, if it is there, later; what can't be, with its keeper's folder or by the next daemon."""
        with contextlib.suppress(OSError):
            os.rename(path, os.path.join(self._gone, str(next(self._names))))
        self._empty()

    def _empty(self) -> None:
        with contextlib.suppress(OSError):  # no descriptor, say: the next removal tries again
            if self._process is None and os.listdir(self._gone):
                self._start()

    def _start(self) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _EMPTY, self._gone], env=_PATH, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)  # it goes on if the daemon ends
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        self._process = process
        STARTED.add(process.pid)
        self._reactor.watch(pidfd, READ, partial(self._emptied, process, pidfd))

    def _emptied(self, process: subprocess.Popen[bytes], pidfd: int, _events: int) -> None:
        self._process = None
        self._reactor.forget(pidfd)
        os.close(pidfd)
        STARTED.discard(process.pid)
        if process.wait() == 0:  # else the next removal tries again
            self._empty()

    def broken(self, error: Exception) -> None:
        """For the barrier: what isn't removed now is by the next removal, or the next daemon."""


class Upper:
    """The folder *path* of one keeper."""

    def __init__(self, uppers: Uppers, path: str) -> None:
        self._uppers, self.path = uppers, path

    def mount(self, done: Callable[[list[int] | LeewardError, object], None]) -> OpenerOrder:
        return self._uppers.mount(self.path, done)

    def clear(self) -> None:
        """A further runner begins: remove what one has left that failed before it was ready."""
        self._uppers.remove(os.path.join(self.path, NEXT))

    def ready(self, number: int) -> None:
        """The runner *number* has made its folder; OSError."""
        os.rename(os.path.join(self.path, NEXT), os.path.join(self.path, str(number)))

    def over(self, number: int) -> None:
        self._uppers.remove(os.path.join(self.path, str(number)))

    def close(self) -> None:
        """The keeper and its runners are gone."""
        self._uppers.remove(self.path)
