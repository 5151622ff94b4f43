"""
Ends sandboxes that can write to a folder of the host whose file system has too little space left.

Theory of operation. A thread for each file system and user asks it every LOOK_S, since statfs(2) of one that doesn't
answer waits for ever, and leaves the answer where the loop finds it, which looks as often. An answer that is missing
for LATE_S counts as no space left; so does a file system that tells no size. All sandboxes that can write there end,
whoever wrote. What is written between two looks is the bound. Each user but root has MOST threads, also of those that
wait.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from leeward.daemon.loop.reactor import Reactor, Repeating
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.errors import Busy

#: Seconds between two looks, and without an answer until the file system counts as full.
LOOK_S, LATE_S = 0.1, 5.0
#: File systems in which the sandboxes of one user but root may have writable folders.
MOST = 16


class FreeSpace:
    """
    The free space of one file system, by a descriptor in it, owned from now on. *said*: when it was told last, by
    `time.monotonic`, and the bytes; *names*: the sandboxes that can write there.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._over = fd, threading.Event()
        self.said = (time.monotonic(), 1 << 63)
        self.names: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="free space", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the loop's
        while not self._over.is_set():
            try:
                about = os.fstatvfs(self._fd)
                free = about.f_bavail * about.f_frsize
            except OSError:
                free = 0
            self.said = (time.monotonic(), free)
            self._over.wait(LOOK_S)
        os.close(self._fd)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let the thread end, which closes the descriptor; without waiting."""
        self._over.set()


class Reserve:
    """
    *least* returns the bytes that have to stay free of a user's sandboxes, 0 for none; *end* gets one that has to end,
    and why.
    """

    def __init__(self, reactor: Reactor, least: Callable[[int], int], end: Callable[[str, str], None]) -> None:
        self._least, self._end = least, end
        self._asked: dict[tuple[int, int], FreeSpace] = {}  # by user and device
        self._stopped: list[tuple[int, FreeSpace]] = []
        self._looks = Repeating(reactor, LOOK_S, self._look)

    def watch(self, name: str, user: int, mounts: Mounts) -> None:
        """
        Watch the writable folders among *mounts*, which aren't mounted yet, for the sandbox *name*. Busy if these are
        in too many file systems for this user, or there are no descriptors or threads.
        """
        if not self._least(user):
            return
        for folder, tree, (device, _) in zip(mounts.folders, mounts.trees, mounts.found, strict=True):
            if folder.writable:
                self._asking(user, device, tree).names.add(name)
        if self._asked:
            self._looks.start()

    def _asking(self, user: int, device: int, tree: int) -> FreeSpace:
        found = self._asked.get((user, device))
        if found is None:
            self._stopped = [each for each in self._stopped if each[1].is_alive]
            used = sum(owner == user for owner, _ in (*self._asked, *self._stopped))
            if user and used >= MOST:
                raise Busy(f"sandboxes of user {user} have writable folders in {used} file systems already")
            try:
                found = self._asked[user, device] = FreeSpace(os.dup(tree))
            except (OSError, RuntimeError):
                raise Busy("the free space of a writable folder can't be watched now") from None
        return found

    def forget(self, name: str) -> None:
        """The sandbox *name* is over, or was never watched."""
        for key, each in list(self._asked.items()):
            each.names.discard(name)
            if not each.names:
                del self._asked[key]
                each.stop()
                self._stopped.append((key[0], each))

    def _look(self) -> bool:
        now = time.monotonic()
        for (user, _), each in list(self._asked.items()):
            least, (when, free) = self._least(user), each.said
            why = ("it doesn't answer" if now - when > LATE_S else
                   f"{free} bytes are free, of {least}" if free < least else "")
            for name in sorted(each.names) if why else ():
                self._end(name, why)
        return bool(self._asked)

    def close(self) -> None:
        self._looks.stop()
        for each in self._asked.values():
            each.stop()
        self._asked.clear()
