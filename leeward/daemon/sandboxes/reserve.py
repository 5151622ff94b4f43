"""
Ends sandboxes that can write to a folder of the host whose file system has too little space left, and those that have
written more than they may to a root on a disk, which has no bound of its own (Linux before 6.6).

Theory of operation. A thread for each file system and user asks it every LOOK_S, since statfs(2) of one that doesn't
answer waits for ever, and leaves the answer where the loop finds it, which looks as often. An answer that is missing
for LATE_S counts as no space left; so does a file system that tells no size. All sandboxes that can write there end,
whoever wrote. What is written between two looks is the bound. Each user but root has MOST threads, also of those that
wait.

A root on a disk is weighed by a porter when half of what it may still take, and a STEP at least, has gone from the file
system, whoever took it; and every OFTEN looks, as others may free what it takes, less and less often, down to SELDOM, while
it weighs the same. So one is beyond its bound by a STEP, and by what is written meanwhile, at most. What a walk
doesn't find, files without a name and what is moved about meanwhile, ends with the space that stays free, LEAST at least.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from leeward.daemon.loop.reactor import Reactor, Repeating
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.errors import Busy, LeewardError
from leeward.spec.folders import NAME

#: Seconds between two looks, and without an answer until the file system counts as full.
LOOK_S, LATE_S = 0.1, 5.0
#: File systems in which the sandboxes of one user but root may have writable folders.
MOST = 16
#: Bytes that stay free of roots on a disk, but no more than this part of it; and of a root between two weighings.
LEAST, PART, STEP = 1 << 30, 32, 1 << 20
#: Looks between two weighings of a root: at the beginning and where it has changed, and at most.
OFTEN, SELDOM = 20, 320

class FreeSpace:
    """
    The free space of one file system, by a descriptor in it, owned from now on. *said*: when it was told last, by
    `time.monotonic`, the bytes, and them with those of further names; *size*: its own, when that was told; *names*: the
    sandboxes that can write there.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._over = fd, threading.Event()
        self.said = (time.monotonic(), 1 << 63, 1 << 63)
        self.size = 0
        self.names: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="free space", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the loop's
        while not self._over.is_set():
            try:
                about = os.fstatvfs(self._fd)
                free = about.f_bavail * about.f_frsize
                self.size = about.f_blocks * about.f_frsize
                room = about.f_bfree * about.f_frsize + about.f_ffree * NAME
            except OSError:
                free = room = 0
            self.said = (time.monotonic(), free, room)
            self._over.wait(LOOK_S)
        os.close(self._fd)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let the thread end, which closes the descriptor; without waiting."""
        self._over.set()


class WeighedRoot:
    """
    A sandbox's root on a disk, which may have *most* bytes. *weigh* has it weighed, and calls what it gets with the bytes or
    the failure; *end* gets why it has to end.
    """

    def __init__(self, most: int, weigh: Callable[[Callable[[int | LeewardError], None]], object],
                 end: Callable[[str], None]) -> None:
        self._most, self._weigh, self._end = most, weigh, end
        self._has, self._room, self._weighs = 0, -1, False
        self._pause = self._looks = OFTEN
        self._gone = False  # the weighing that runs is for want of space, and not by time

    def look(self, room: int) -> None:
        """*room*: the bytes that the file system has left, names included; what others have freed since makes it more."""
        self._room, self._looks = max(self._room, room), self._looks - 1
        gone = self._room - room >= max(STEP, (self._most - self._has) // 2)
        if self._weighs or not (gone or self._looks <= 0):
            return
        self._gone = gone
        with contextlib.suppress(LeewardError):  # no descriptor, for instance: the next look tries again
            self._weigh(self._weighed)
            self._weighs, self._room = True, room if gone else self._room  # else one that hides would be asked anew each time

    def _weighed(self, what: int | LeewardError) -> None:
        self._weighs = False
        if isinstance(what, LeewardError):
            self._looks = OFTEN
            if self._gone:
                self._end(f"it can't be told what it has written to its root: {what}")
            return
        self._looks = self._pause = min(2 * self._pause, SELDOM) if what == self._has else OFTEN
        self._has = what
        if what > self._most:
            self._end(f"it has written {what} bytes to its root, of {self._most}")


class Reserve:
    """
    *least* returns the bytes that have to stay free of a user's sandboxes, 0 for none; *end* gets one that has to end,
    and why.
    """

    def __init__(self, reactor: Reactor, least: Callable[[int], int], end: Callable[[str, str], None]) -> None:
        self._least, self._end = least, end
        self._asked: dict[tuple[int, int], FreeSpace] = {}  # by user and device
        self._stopped: list[tuple[int, FreeSpace]] = []
        self._roots: dict[str, WeighedRoot] = {}  # by sandbox
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

    def watch_root(self, name: str, user: int, folder: str, most: int,
                   weigh: Callable[[Callable[[int | LeewardError], None]], object]) -> None:
        """Watch the root of the sandbox *name*, below *folder* of a disk, as `WeighedRoot`. As for `watch`; OSError."""
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._asking(user, os.fstat(fd).st_dev, fd).names.add(name)
        finally:
            os.close(fd)
        self._roots[name] = WeighedRoot(most, weigh, lambda why: self._end(name, why))
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
        self._roots.pop(name, None)
        for key, each in list(self._asked.items()):
            each.names.discard(name)
            if not each.names:
                del self._asked[key]
                each.stop()
                self._stopped.append((key[0], each))

    def _look(self) -> bool:
        now = time.monotonic()
        for (user, _), each in list(self._asked.items()):
            least, (when, free, room) = self._least(user), each.said
            roots = [self._roots[name] for name in each.names if name in self._roots]
            least = max(least, min(LEAST, each.size // PART) if roots else 0)
            why = ("it doesn't answer" if now - when > LATE_S else
                   f"{free} bytes are free, of {least}" if free < least else "")
            for name in sorted(each.names) if why else ():
                self._end(name, why)
            for root in roots if not why and room < 1 << 63 else ():
                root.look(room)
        return bool(self._asked)

    def close(self) -> None:
        self._looks.stop()
        for each in self._asked.values():
            each.stop()
        self._asked.clear()
