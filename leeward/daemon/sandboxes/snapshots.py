"""
The snapshots of all users: sealed memory files, which belong to a user and outlive the sandbox that they were taken in.

A snapshot is found by its id together with its user, as a sandbox is. Bytes are counted for their user from when they are
admitted until nobody has the file: a snapshot that was removed still counts while a copy has its pages mapped, and so does
what a process of a sandbox has kept of a dump that failed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward._native import last_use
from leeward._native.memfd import memory_file
from leeward.base.dataclass import dataclass
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, Reactor, Timer
from leeward.daemon.run.dumping import KernelState, close_file
from leeward.daemon.sandboxes.importing import PATIENCE_S, Arriving
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.errors import Busy, SnapshotFailed
from leeward.spec.sizes import size_text
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH

#: Snapshots of one user, and of all users together, at most: each takes a descriptor of the daemon's.
MOST_SNAPSHOTS, MOST_OF_ALL = 64, 512
#: Of the machine's memory, the part that all snapshots together may take.
_PART = 0.5
#: Dumps of one user at once: each has a process that copies memory. One that takes longer than these seconds is no longer
#: among them: the sandbox can keep it waiting, and behind a server for many all are one user's.
MOST_DUMPS, DUMPS_S = 4, 1.0
#: Files of one user that still have bytes somewhere, and the part of the host's watches that those of all users may take.
_MOST_FILES, _PART_OF_WATCHES = 4096, 4
#: Seconds for which a request that finds no room waits for a file that is being closed.
_FREED_S = 0.02


@dataclass(slots=True)
class SnapshotEntry:
    """A snapshot. *used*: by the reactor's clock; *made*: in seconds since the epoch."""

    name: str
    user: int
    state: KernelState
    made: float
    used: float

    def info(self) -> Mapping[str, Any]:
        """What its user is told."""
        return {**self.row(), "packages": dict(self.state.packages), "lost": list(self.state.lost)}

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of the state, and of its zygote's memory."""
        return self.state.size, 0 if self.state.memory is None else self.state.memory.size

    def bytes_at(self, offset: int, most: int) -> bytes:
        """At most *most* bytes of both, one behind the other; none behind their end."""
        size, memory = self.state.size, self.state.memory
        if offset < size:
            return os.pread(self.state.fd, min(most, size - offset), offset)
        return b"" if memory is None else os.pread(memory.fd, min(most, max(0, size + memory.size - offset)), offset - size)

    def row(self) -> Mapping[str, Any]:
        return {"snapshot": self.name, "size": self.state.size, "made": self.made, "python": self.state.python}


#: Whether a user may have so many of what all users share while so many are left.
Leaves = Callable[[int, int, int], bool]


def all_of_it(_user: int, _own: int, _left: int) -> bool:
    """For a daemon with one user."""
    return True


class Snapshots:
    """
    *most* returns the bytes that a user's snapshots may take, *idle* the seconds after which an unused one is removed;
    *leaves* holds users to their part of what there is for all.
    """

    costs = "session"

    def __init__(self, reactor: Reactor, uses: LastUses, most: Callable[[int], int], idle: Callable[[], float],
                 leaves: Leaves, wall: Callable[[], float] = time.time) -> None:
        self._reactor, self._most, self._idle, self._wall = reactor, most, idle, wall
        self._uses, self._leaves = uses, leaves
        self._room = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") * _PART)
        self._most_files = last_use.most() // _PART_OF_WATCHES
        self._found: dict[str, SnapshotEntry] = {}
        self._files: dict[int, tuple[int, int]] = {}  # that somebody has: their users and bytes, by their numbers
        self._dumps: dict[int, list[float]] = {}  # when those of a user began
        self._closes: threading.Thread | None = None  # the last snapshot that was removed
        self._timer = NO_TIMER
        self._arriving: dict[str, tuple[int, Arriving, float]] = {}  # with their users, and when they began
        self._waits: dict[str, Timer] = {}  # for bytes of those

    def begin(self, user: int) -> float:
        """Count a dump, until `end` gets what is returned; Busy if the user has too many at once, or too many snapshots."""
        dumps, now = self._dumps.get(user, []), self._reactor.now()
        if sum(now - DUMPS_S < began for began in dumps) >= MOST_DUMPS:
            raise Busy(f"{MOST_DUMPS} snapshots of yours are being taken already")
        own = sum(each.user == user for each in self._found.values()) + len(dumps)
        if own >= MOST_SNAPSHOTS:
            raise Busy(f"you have {MOST_SNAPSHOTS} snapshots, all that a user may have: remove one")
        left = MOST_OF_ALL - len(self._found) - sum(map(len, self._dumps.values())) - 1
        if left < 0 or not self._leaves(user, own + 1, left):
            raise Busy(f"the daemon has {MOST_OF_ALL - left - 1} snapshots, of {MOST_OF_ALL} that it may have")
        self._dumps[user] = [*dumps, now]
        return now

    def end(self, user: int, began: float) -> None:
        dumps = self._dumps[user]
        dumps.remove(began)
        if not dumps:
            del self._dumps[user]

    def new_file(self, user: int, size: int) -> int:
        """
        Make a memory file, whose *size* bytes count for *user* until nobody has it. The caller owns the descriptor. Busy if
        these are too many.
        """
        self._admit(user, size)
        fd = memory_file("leeward_snapshot")
        try:
            self.count(user, fd, size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def count(self, user: int, fd: int, size: int) -> None:
        """Count a file that is there, unless it is counted already, until nobody has it. Busy if that can't be told."""
        self._files.setdefault(self._uses.watch(fd, self._gone), (user, size))

    def resize(self, user: int, fd: int, size: int) -> None:
        """Count *size* bytes of a file of *user*'s, as of now; Busy if these are too many."""
        number = self._uses.watch(fd, self._gone)
        _, before = self._files.get(number, (user, 0))
        if size > before:
            self._admit(user, size - before)
        self._files[number] = user, size

    def _gone(self, number: int) -> None:
        del self._files[number]

    def _bytes(self) -> Counter[int]:
        """The bytes that each user has, with the memory of each zygote that a snapshot of his keeps."""
        found = Counter[int]()
        for owner, size in self._files.values():
            found[owner] += size
        zygotes = {(each.user, id(each.state.memory)): each.state.memory.size for each in self._found.values()
                   if each.state.memory is not None and not each.state.memory.is_counted}
        for (owner, _), size in zygotes.items():
            found[owner] += size
        return found

    def _admit(self, user: int, size: int) -> None:
        """Busy if *size* bytes more are too many."""
        if self._why_not(user, size):
            if self._closes is not None:
                self._closes.join(_FREED_S)
            self._uses.wait(0.0)
        why = self._why_not(user, size)
        if why:
            raise Busy(why)

    def _why_not(self, user: int, size: int) -> str:
        found, most = self._bytes(), self._most(user)
        have = found[user]
        if have + size > most:
            return (f"a snapshot of {size_text(size)} would make {size_text(have + size)} of yours, and"
                    f" {size_text(most)} are the most (snapshot_memory): remove one, or end its copies")
        left = self._room - found.total() - size
        if left < 0 or not self._leaves(user, have + size, left):
            return "the snapshots of all users take as much of this machine's memory as they may"
        own, left = sum(owner == user for owner, _ in self._files.values()), self._most_files - len(self._files) - 1
        if own >= _MOST_FILES or left < 0 or not self._leaves(user, own + 1, left):
            return f"{own} states of yours are in use, all that you may have now: end copies of them"
        return ""

    def add(self, user: int, state: KernelState) -> SnapshotEntry:
        """Add a state in a file of `new_file`, which is the registry's from now on."""
        self.resize(user, state.fd, state.size)
        return self._keep(self._new_name(), user, state, self._wall())

    def _keep(self, name: str, user: int, state: KernelState, made: float) -> SnapshotEntry:
        kept = self._found[name] = SnapshotEntry(name, user, state, made, self._reactor.now())
        self._look_later()
        return kept

    def _new_name(self) -> str:
        return "".join(ID_ALPHABET[byte & 31] for byte in os.urandom(ID_LENGTH))

    def begin_import(self, user: int, arriving: Arriving) -> str:
        """Begin to take *arriving*, and return its id. Raises as `begin` and `new_file`; SnapshotFailed without memory."""
        name = self._new_name()
        began = self.begin(user)
        try:
            arriving.begin(partial(self.new_file, user))
        except BaseException:
            self.end(user, began)
            raise
        self._arriving[name] = user, arriving, began
        self._wait_for(name)
        return name

    def add_bytes(self, name: str, user: int, data: bytes) -> int:
        """Add the next bytes to an import, and return how many it lacks; without any it is a snapshot."""
        whose, arriving, _ = self._arriving.get(name, (-1, None, 0.0))
        if arriving is None or whose != user:
            raise SnapshotFailed(f"you import no snapshot {name}: it never was, or is whole, or nothing came for"
                                 f" {PATIENCE_S:g} s")
        try:
            left = arriving.add(data)
            if not left:
                state = arriving.state()
        except OSError as error:
            self._drop_import(name)
            raise SnapshotFailed(f"its memory: {error.strerror}") from error
        if left:
            self._wait_for(name)
            return left
        self._drop_import(name)
        self._keep(name, user, state, arriving.made)
        return 0

    def _wait_for(self, name: str) -> None:
        self._stop_waiting(name)
        self._waits[name] = self._reactor.after(PATIENCE_S, partial(self._drop_import, name))

    def _stop_waiting(self, name: str) -> None:
        self._waits.pop(name, NO_TIMER).cancel()

    def _drop_import(self, name: str) -> None:
        user, arriving, began = self._arriving.pop(name)
        in_any_case(partial(self._stop_waiting, name), partial(self.end, user, began), arriving.close)

    def get(self, name: str, user: int) -> SnapshotEntry:
        """The snapshot *name* of *user*, used now; SnapshotFailed if the user has none of that name."""
        found = self._found.get(name)
        if found is None or found.user != user:
            raise SnapshotFailed(f"you have no snapshot {name}: it never was, or was removed, or unused for too long,"
                                 " or the daemon was started anew")
        found.used = self._reactor.now()
        return found

    def of(self, user: int) -> list[SnapshotEntry]:
        """The snapshots of *user*, the oldest first."""
        return [each for each in self._found.values() if each.user == user]

    def remove(self, name: str, user: int) -> None:
        """Remove the snapshot *name* of *user*, or give up its import; SnapshotFailed as `get`."""
        if name in self._arriving and self._arriving[name][0] == user:
            self._drop_import(name)
        else:
            self._drop(self.get(name, user))

    def _drop(self, snapshot: SnapshotEntry) -> None:
        del self._found[snapshot.name]
        self._closes = close_file(snapshot.state.fd, snapshot.state.size) or self._closes

    def _look_later(self) -> None:
        if not self._timer.is_set and self._found:
            due = min(each.used for each in self._found.values()) + self._idle()
            self._timer = self._reactor.after(max(1.0, due - self._reactor.now()), self._look)

    def _look(self) -> None:
        before = self._reactor.now() - self._idle()
        in_any_case(*(partial(self._drop, each) for each in list(self._found.values()) if each.used <= before),
                    self._look_later)

    def broken(self, _error: Exception) -> None:
        """Called by the barrier: a callback has failed."""
        self._look_later()

    def close(self) -> None:
        self._timer.cancel()
        in_any_case(*(partial(self._drop, each) for each in list(self._found.values())),
                    *(partial(self._drop_import, name) for name in list(self._arriving)))

