"""
Passes the bytes of one direction by splice(2) from a socket through a pipe into another socket, without a copy into
this process.

Runs in:   the broker, on its loop, by callbacks: a task that is resumed for each piece costs more than the piece.
Theory of operation. While the pipe is empty the source is watched for reading, otherwise the goal for writing. The loop
           keeps watching that socket from one turn to the next, so a wait is one call of epoll_wait(2); a change to the
           other socket takes two calls more.
Bound:     one pipe of PIPED bytes; _TURN bytes before others have their turn.
Source:    splice(2)
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress

#: Bytes in the pipe.
PIPED = 1 << 20

#: Bytes after which other tasks run, if neither peer makes a direction wait.
_TURN = 2 << 20

#: <linux/splice.h>: SPLICE_F_MOVE | SPLICE_F_NONBLOCK
_SPLICE = 3


class Splicing:
    """
    Passes bytes on from `begin` to `end`. Owns the pipe; the sockets stay the caller's.

    Args:
        source: the socket that is read. Nothing else may watch it for reading.
        goal: the socket that is written. Nothing else may watch it for writing.
        took: called with the length of each piece that came, before the piece is passed on. An exception that it raises
            ends the splicing.
        passed: called with the number of bytes that were written to *goal*.

    Attributes:
        over: a future that is done when the source has ended and all its bytes were passed on. It fails with an OSError
            of either socket, or with the exception of *took*.

    Raises:
        OSError: there are no descriptors for the pipe.
    """

    def __init__(self, source: socket.socket, goal: socket.socket, took: Callable[[int], None],
                 passed: Callable[[int], None]) -> None:
        self._source, self._goal, self._took, self._passed = source, goal, took, passed
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._out, self._into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # the user's bound on pipes is reached: the pipe keeps its size
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, PIPED)
        self._held = 0
        self._watches_goal: bool | None = None

    def begin(self) -> None:
        """Start to pass bytes."""
        self._turn()

    def end(self) -> None:
        """Stop watching. May be called repeatedly."""
        self._forget()
        out, into, self._out, self._into = self._out, self._into, -1, -1
        for fd in (out, into):
            if fd >= 0:
                os.close(fd)

    # --- passing on -----------------------------------------------------------

    def _turn(self) -> None:
        if self.over.done():
            return
        try:
            self._pass_on()
        except Exception as error:  # `over` fails with it
            self._forget()
            self.over.set_exception(error)

    def _pass_on(self) -> None:
        left = _TURN
        while left > 0:
            if not self._held:
                try:
                    count = os.splice(self._source.fileno(), self._into, PIPED, flags=_SPLICE)
                except BlockingIOError:  # the pipe is empty, so the source has no bytes
                    self._watch(goal=False)
                    return
                if not count:
                    self._forget()
                    self.over.set_result(None)
                    return
                self._held = count
                self._took(count)
            try:
                count = os.splice(self._out, self._goal.fileno(), self._held, flags=_SPLICE)
            except BlockingIOError:
                self._watch(goal=True)
                return
            self._held -= count
            left -= count
            self._passed(count)
        self._watch(goal=self._held > 0)  # that socket is still ready, so the loop continues here after others

    def _watch(self, *, goal: bool) -> None:
        if goal is self._watches_goal:
            return
        self._forget()
        self._watches_goal = goal
        if goal:
            self._loop.add_writer(self._goal, self._turn)
        else:
            self._loop.add_reader(self._source, self._turn)

    def _forget(self) -> None:
        watched, self._watches_goal = self._watches_goal, None
        if watched is True:
            self._loop.remove_writer(self._goal)
        elif watched is False:
            self._loop.remove_reader(self._source)
