"""
The ends of a new process's standard streams, and of its birth channel.

Runs in:   the daemon.
Owns:      nothing: what it opens is closed by the caller's two stacks.
"""

from __future__ import annotations

import contextlib
import errno
import os

from leeward.isolation.channel import Channel
from leeward.isolation.terminals import pseudo_terminal
from leeward.run.launch import Stdio


class Streams:
    """
    The ends of a process's standard streams. The process's own are closed when the order is out.

    Args:
        owner: the uid and gid that own the pipes: a process may open /dev/stdout anew.
        given: closes the process's ends.
        kept: closes the daemon's, unless there is a process to keep them.
    """

    def __init__(self, owner: tuple[int, int], given: contextlib.ExitStack, kept: contextlib.ExitStack) -> None:
        self._owner, self._given, self._kept = owner, given, kept
        self.theirs: list[int] = []

    def open(self, stdin: int | Stdio, stdout: int | Stdio, stderr: int | Stdio) -> tuple[int, int, int]:
        """
        Returns:
            The daemon's ends, -1 where there is none.
        """
        return self._stream(stdin, write=False), self._stream(stdout, write=True), self._stream(stderr, write=True)

    def terminal(self, devpts: int, rows: int, columns: int) -> tuple[int, int, int]:
        """
        A new pseudo-terminal, which is all three of the process's streams.

        Returns:
            As `open`: one end to write to it, and one to read from it.

        Raises:
            OSError: as `pseudo_terminal`; ENODEV where *devpts* is none.
        """
        if devpts < 0:
            raise OSError(errno.ENODEV, "this daemon's sandboxes have no terminals")
        master, slave = pseudo_terminal(devpts, rows, columns)
        self._given.callback(os.close, slave)
        self._kept.callback(os.close, master)
        self.theirs += [slave] * 3
        # One open file is behind both: the loop watches each of them for something else.
        write_end = os.dup(master)
        self._kept.callback(os.close, write_end)
        return write_end, master, -1

    def _stream(self, what: int | Stdio, *, write: bool) -> int:
        if isinstance(what, int):
            self.theirs.append(what)
            return -1
        if Stdio.OUT is what:
            self.theirs.append(self.theirs[-1])
            return -1
        if Stdio.NULL is what:
            null = os.open("/dev/null", (os.O_WRONLY if write else os.O_RDONLY) | os.O_CLOEXEC)
            self._given.callback(os.close, null)
            self.theirs.append(null)
            return -1
        return self.pipe(write=write)

    def pipe(self, *, write: bool) -> int:
        """
        A new pipe, into which the process writes or out of which it reads; the daemon's end.
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        ours, theirs = (read_end, write_end) if write else (write_end, read_end)
        self._given.callback(os.close, theirs)
        self._kept.callback(os.close, ours)
        os.set_blocking(ours, False)
        if self._owner[0] != os.geteuid():
            os.fchown(theirs, *self._owner)
        self.theirs.append(theirs)
        return ours


def birth_channel(given: contextlib.ExitStack, kept: contextlib.ExitStack) -> tuple[Channel, int]:
    """
    A birth channel, and the process's end of it.
    """
    here, there = Channel.pair()
    given.callback(there.close)
    kept.callback(here.close)
    here.socket.setblocking(False)
    return here, there.fileno()
