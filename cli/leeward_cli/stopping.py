"""
`leeward daemon stop`: asks the daemon to end, and waits until its process has ended.

Theory of operation. All requests use one connection, so that they go to one daemon: if a service manager keeps the
socket, the next connection may reach the next daemon. The kernel reports the daemon's pid with the bytes of an answer
(SCM_CREDENTIALS). The socket's peer may be the service manager, and the daemon's own pid may belong to another pid
namespace. A pidfd is opened before the daemon is asked to end; the following answer shows that the pidfd is still that
daemon's. If this process can't see the daemon's, it waits for the end of the connection instead.

A daemon that speaks another version of the wire refuses every request. It gets SIGTERM, by a pidfd that was opened
between two refusals. unix(7), pidfd_open(2)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
from _socket import CMSG_SPACE, SCM_CREDENTIALS, SO_PASSCRED, SOL_SOCKET
from collections.abc import Mapping
from typing import Any

from leeward.client.connecting import away
from leeward.client.connection import READ, BlockingConnection
from leeward.errors import DaemonAway, NoAnswer, RequestRejected, VersionMismatch
from leeward.wire.replies import Reply

#: Seconds that a daemon has to end: it drains for less than 5 s, and takes longer if clients don't read or workers
#: don't end.
STOP_S = 75.0

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Line(BlockingConnection):
    """A connection that isn't renewed, and that knows the pid of the daemon that answers; 0 if it isn't known."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.pid = 0
        self._connect(None)
        assert self._socket is not None
        self._socket.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)

    def ask(self, op: str, fields: Mapping[str, Any], until: float) -> Reply:
        if self._socket is None:
            raise away(self.path, "it closed the connection")
        return self._ask(op, fields, until)[0]

    def _receive(self) -> list[tuple[Reply, list[int]]]:
        assert self._socket is not None
        data, ancillary, _, _ = self._socket.recvmsg(READ, CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, content in ancillary:
            if level == SOL_SOCKET and kind == SCM_CREDENTIALS and len(content) == _CREDENTIALS.size:
                self.pid = _CREDENTIALS.unpack(content)[0]
        if not data:
            raise away(self.path, "it went away before it answered", may_have_run=True)
        return self._conversation.received(data)


def stop(socket: str, now: bool = False) -> int:
    """Ask the daemon on *socket* to end (*now*: with its jobs), and wait until it has; NoAnswer after STOP_S."""
    until = time.monotonic() + STOP_S
    line = Line(socket)
    process = -1
    try:
        try:
            line.ask("ping", {}, until)
        except VersionMismatch as mismatch:
            process = pidfd_of(line.pid)
            _end_by_signal(line, process, mismatch, until)
            _wait_for(process, line.pid, until)
            return 0
        process = pidfd_of(line.pid)
        try:
            line.ask("shutdown", {"now": True} if now else {}, until)
        except RequestRejected as rejected:
            if not now:
                raise
            raise RequestRejected("this daemon is too old to know --now, and goes on; without --now it ends, after some"
                                  f" seconds for its running jobs ({rejected})") from None
        except DaemonAway:
            if process < 0:
                raise
            # The daemon is ending already: otherwise it wouldn't have closed a connection in use.
        if process >= 0:
            _wait_for(process, line.pid, until)
        else:
            _wait_closed(line, until)
    finally:
        line.close()
        if process >= 0:
            os.close(process)
    return 0


def _end_by_signal(line: Line, process: int, mismatch: VersionMismatch, until: float) -> None:
    """Ask a daemon of another version, with the pidfd *process*, to end; raise *mismatch*, its refusal, if that fails."""
    if process < 0:
        raise mismatch
    with contextlib.suppress(VersionMismatch):
        line.ask("ping", {}, until)  # the refusal shows that the pidfd is that daemon's
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except OSError:
        raise mismatch from None


def pidfd_of(pid: int) -> int:
    """A pidfd of *pid*; -1 if the process is in a pid namespace that this process doesn't see, or has ended."""
    if not pid:
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _wait_for(process: int, pid: int, until: float) -> None:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise NoAnswer(f"daemon {pid} was asked to end, and still runs after {STOP_S:.0f} s; `kill -9 {pid}` ends it"
                       " and its jobs at once")


def _wait_closed(line: Line, until: float) -> None:
    """Wait until the connection ends, which happens when the daemon ends."""
    try:
        while True:
            line.ask("ping", {}, until)
            time.sleep(0.05)
    except DaemonAway:
        return
