"""
The ends of a new process's standard streams, and of its birth channel.

Runs in:   the daemon.
Owns:      nothing: the caller's two stacks close the descriptors that are opened here.
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
    Opens the ends of a process's standard streams. The process's own ends are closed when the order was sent.

    Args:
        owner: the uid and gid that own the pipes, so that the process may open /dev/stdout again.
        given: closes the process's ends.
        kept: closes the daemon's ends, unless a LiveProcess takes them over.
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
        Open a pseudo-terminal, which is all three streams of the process.

        Returns:
            As `open`: a descriptor to write to the terminal, one to read from it, and -1.

        Raises:
            OSError: as `pseudo_terminal`; ENODEV if *devpts* is -1.
        """
        if devpts < 0:
            raise OSError(errno.ENODEV, "this daemon's sandboxes have no terminals")
        master, slave = pseudo_terminal(devpts, rows, columns)
        self._given.callback(os.close, slave)
        self._kept.callback(os.close, master)
        self.theirs += [slave] * 3
        # Two descriptors of one open file, because the loop watches each of them for other events.
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
        """Open a pipe to which the process writes (*write*) or from which it reads. Returns the daemon's end."""
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
    """Make a birth channel. Returns the daemon's end, and the descriptor of the process's end."""
    here, there = Channel.pair()
    given.callback(there.close)
    kept.callback(here.close)
    here.socket.setblocking(False)
    return here, there.fileno()
