"""
Sessions in a box: the server on the box's reactor, and clients that speak the wire by hand.

Runs in:   the tests; one thread turns the reactor for all of it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any

from kit.box import RUNS, Box
from leeward.daemon.config import Config
from leeward.daemon.sandboxes.terms import terms_of
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.wire.frames import FrameReader, decode, encode


class Wire:
    """A server in front of *box*."""

    def __init__(self, box: Box, **config: Any) -> None:
        self.box = box
        self.server = Server(box.reactor, box.engine.main.pool, Config(**config), status=dict, shut_down=lambda now: None,
                             users=ServedUsers(os.geteuid()),
                             terms=lambda: terms_of(box.engine.spec, box.engine.confinement.degraded))
        self._peers: list[Peer] = []

    def peer(self, user: int | None = None) -> Peer:
        ours, theirs = socket.socketpair()
        self.server.adopt(theirs, user)
        self._peers.append(Peer(self, ours))
        return self._peers[-1]

    def until(self, condition: Callable[[], bool]) -> None:
        self.box.reactor.run(condition)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.server.close()
        for peer in self._peers:
            peer.close()
        self.box.settle()


class Peer:
    """One client's connection."""

    def __init__(self, wire: Wire, sock: socket.socket) -> None:
        self._wire, self._sock = wire, sock
        self._reader = FrameReader()
        self._last = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.order: list[int] = []
        self.closed = False  # by the server
        sock.setblocking(False)

    @property
    def next(self) -> int:
        """Return the id that the next request will have."""
        return self._last + 1

    def send(self, op: str, **fields: Any) -> int:
        """Send a request, and return its id."""
        self._last += 1
        if op in ("execute", "process_run", "process_start"):
            RUNS.append(self._wire.box.made_of)
        left = memoryview(encode({"v": 1, "id": self._last, "op": op, **fields}))

        def taken() -> bool:
            nonlocal left
            try:
                left = left[self._sock.send(left):]
            except BlockingIOError:
                pass  # more than the socket holds: the server has to read
            return not left

        if not taken():
            self._wire.until(taken)
        return self._last

    def wait(self, number: int) -> dict[str, Any]:
        """Wait for the answer to this request, and return it."""
        self._wire.until(lambda: self.has(number))
        return self._answers.pop(number)

    def has(self, number: int) -> bool:
        """Whether the answer to this request has come. All that is there is taken: the reactor waits for its room."""
        while not self.closed:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, 1 << 16, 16)
            except BlockingIOError:
                break
            self.closed = not data
            for fd in fds:
                os.close(fd)
            for payload in self._reader.feed(data):
                reply = decode(payload)
                self._answers[reply["id"]] = reply
                self.order.append(reply["id"])
        return number in self._answers

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and wait. Returns the answer, an `ok` or an `error`."""
        reply = self.wait(self.send(op, **fields))
        answer: dict[str, Any] = reply["ok"] if "ok" in reply else reply["error"]
        return answer

    def open(self, **fields: Any) -> int:
        """Open a session, and return its number."""
        number: int = self.ask("session_open", **fields)["session"]
        return number

    def box(self, **fields: Any) -> str:
        """Open a sandbox, and return its id."""
        name: str = self.ask("sandbox_open", **fields)["sandbox"]
        return name

    def command(self, box: str, *argv: str, **fields: Any) -> dict[str, Any]:
        """Run a program in *box*, and return the answer."""
        return self.ask("process_run", sandbox=box, argv=list(argv), **fields)

    def run(self, session: int, code: str, **fields: Any) -> dict[str, Any]:
        """Run a job in *session*, and return the answer."""
        return self.ask("execute", session=session, code=code.encode(), **fields)

    def close(self) -> None:
        self._sock.close()
