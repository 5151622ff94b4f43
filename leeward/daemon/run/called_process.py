"""
A process of a live sandbox that does calls for the daemon: one frame down its job pipe, one up its reply pipe.

Trust: none in the answers. A frame that is too long, or bytes that answer no call, end the process.

Theory of operation. The process is an interpreter beside the runner's first process (run/beside.py) with `CallProcess`
as its tenant, and has one call at a time. `lost` is called once, when it has gone or was given up, and no callback
after that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import READ, WRITE, Reactor
from leeward.daemon.run.output import widen
from leeward.daemon.run.runner import Runner
from leeward.daemon.run.verdict import bug
from leeward.errors import LeewardError, PeerError
from leeward.wire.pieces import Piece

if TYPE_CHECKING:
    from leeward.daemon.run.beside import Interpreter

#: Bytes that are read in one turn of the loop: eight times the content of a pipe.
_TURN = 1 << 19
#: Bytes of a pipe; and of one during a call or an answer that is longer, so that neither side waits for the other's turns.
_USUAL, _WIDE = 1 << 16, 1 << 20
#: Bytes of a frame's length.
_HEAD = 4


class CallProcess:
    """*begins* is the first frame, which tells the process that it does calls; *most* the largest answer's bytes."""

    costs = "session"

    def __init__(self, reactor: Reactor, runner: Runner, interpreter: Interpreter, begins: bytes, most: int,
                 lost: Callable[[str], None]) -> None:
        self._reactor, self._interpreter, self._most = reactor, interpreter, most
        self._lost: Callable[[str], None] | None = lost
        self._job, self._reply = runner.job, runner.reply
        self._answer, self._have = bytearray(_HEAD), 0  # and how many of its bytes have come
        self._heard: Callable[[memoryview], None] | None = None
        self._unsent = list[memoryview]()
        self._wide = set[int]()
        try:
            os.write(self._job, begins)  # into an empty pipe
        except OSError as error:
            raise LeewardError(f"runner {runner.number}: {error}") from error
        reactor.watch(self._reply, READ, self._readable)

    def call(self, body: Sequence[Piece], heard: Callable[[memoryview], None]) -> None:
        """Send a call, once the one before was answered. *heard* gets the answer's body, unless the process is lost."""
        if self._lost is None or self._heard is not None:
            raise LeewardError("the process has a call, or is over")
        self._heard = heard
        size = sum(map(len, body))
        self._make_room(self._job, size)
        self._unsent = [memoryview(piece) for piece in (size.to_bytes(_HEAD, "big"), *body) if piece]
        self._write()

    def _make_room(self, pipe: int, size: int) -> None:
        if size > _USUAL and pipe not in self._wide:
            self._wide.add(pipe)
            widen(pipe, _WIDE)

    def _write(self, _events: int = 0) -> None:
        watched = self._reactor.watches(self._job)
        unsent = self._unsent
        try:
            while unsent:
                count = os.writev(self._job, unsent)
                while unsent and count >= len(unsent[0]):
                    count -= len(unsent.pop(0))
                if count:
                    unsent[0] = unsent[0][count:]
        except BlockingIOError:
            if not watched:
                self._reactor.watch(self._job, WRITE, self._write)
            return
        except OSError as error:
            self.end(f"it takes no call: {error}")
            return
        if watched:
            self._reactor.forget(self._job)

    def _readable(self, _events: int) -> None:
        try:
            done = self._read()
        except PeerError as error:
            self.end(str(error))
            return
        if done and self._heard is not None:
            body = memoryview(self._answer)[_HEAD:]
            self._answer, self._have = bytearray(_HEAD), 0
            while self._wide:
                widen(self._wide.pop(), _USUAL)
            heard, self._heard = self._heard, None
            heard(body)

    def _read(self) -> bool:
        """Read more of the answer, and return whether it is complete; PeerError if it isn't one, or has no more."""
        turn = self._have + _TURN
        while True:
            if self._have == len(self._answer):
                size = int.from_bytes(self._answer[:_HEAD], "big")
                if self._have == _HEAD + size:
                    if self._unsent:
                        raise PeerError("an answer to a call that it has not read")
                    return True
                if size > self._most:
                    raise PeerError(f"an answer of {size} bytes")
                head, self._answer = self._answer, bytearray(_HEAD + size)
                self._answer[:_HEAD] = head
                self._make_room(self._reply, size)
            if self._have >= turn:
                return False
            try:
                count = os.readv(self._reply, [memoryview(self._answer)[self._have:turn]])
            except BlockingIOError:
                return False
            if not count:
                raise PeerError("it has closed its end")
            if self._heard is None:
                raise PeerError("bytes that answer nothing")
            self._have += count

    def end(self, why: str) -> None:
        """Give the process up: end it, and call `lost` with *why*."""
        lost, self._lost = self._lost, None
        if lost is None:
            return
        self._heard, self._answer, self._unsent = None, bytearray(), []
        in_any_case(self._forget, self._interpreter.kill, lambda: lost(why))

    def emptied(self, status: int | None, reason: str) -> None:
        """For the interpreter: neither the process nor a descendant is left."""
        if status is not None and os.WIFSIGNALED(status):
            reason = f"signal {os.WTERMSIG(status)} has ended it"
        self.end(reason or "it has ended")

    def _forget(self) -> None:
        """Stop watching the descriptors, before they are closed."""
        for fd in (self._job, self._reply):
            self._reactor.forget(fd)
        self._job = self._reply = -1

    def broken(self, error: Exception) -> None:
        self.end(bug(error))
