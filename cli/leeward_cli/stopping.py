"""
`leeward daemon stop`: ask the daemon to end, and wait until its process is gone.

Runs in:   the CLI.

Theory of operation. Everything goes over one connection, so that it concerns one daemon: on a socket that a service
manager keeps the next connection may be the next daemon's. Whose process to wait for the kernel says, beside the bytes
of an answer (SCM_CREDENTIALS): not the socket, whose maker may be the manager, and not the daemon, whose own number
means something else where it has a pid namespace. A pidfd is opened before the daemon is asked to end, and the
answer shows that it was still that process. Where no process is seen from here the connection's end has to do.

Exit status: 0, the process is gone; 1, nobody answers, the daemon refuses, or it lives on after STOP_S.
Source:    unix(7), pidfd_open(2)
"""

from __future__ import annotations

import os
import select
import struct
import time
from _socket import CMSG_SPACE, SCM_CREDENTIALS, SO_PASSCRED, SOL_SOCKET
from collections.abc import Mapping
from typing import Any

from leeward.client.connecting import away
from leeward.client.link import READ, Link
from leeward.errors import DaemonAway, NoAnswer, RequestRejected
from leeward.wire.replies import Reply

#: Seconds until a daemon that was asked must have ended: it drains for less than 5, and takes some more where its
#: clients don't read or its workers don't end.
STOP_S = 15.0

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Line(Link):
    """
    One connection, which is never remade, that knows the process of the daemon that answers.

    Attributes:
        pid: the daemon's pid, as this process sees it; 0 while it isn't known.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.pid = 0
        self._connect(None)
        assert self._socket is not None
        self._socket.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)

    def ask(self, op: str, fields: Mapping[str, Any], until: float) -> Reply:
        """
        The good answer to a request that has no descriptors.

        Raises: as Link.call.
        """
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
    """
    Ask the daemon on *socket* to end, wait for that; return the exit status.

    Args:
        now: end its running jobs at once.

    Raises:
        DaemonAway: no daemon answers there.
        NoAnswer: it has not ended within STOP_S; the text says which process that is.
        Refused: it belongs to another user, or is older than --now.
    """
    until = time.monotonic() + STOP_S
    line = Line(socket)
    process = -1
    try:
        line.ask("ping", {}, until)
        process = pidfd_of(line.pid)
        try:
            line.ask("shutdown", {"now": True} if now else {}, until)
        except RequestRejected as rejected:
            if not now:
                raise
            raise RequestRejected("this daemon is older than --now and goes on; without --now it ends, after some"
                                  f" seconds for its running jobs ({rejected})") from None
        except DaemonAway:
            if process < 0:
                raise
            # It ends already: else it would not have closed a connection that was just in use.
        if process >= 0:
            _wait_for(process, line.pid, until)
        else:
            _wait_closed(line, until)
    finally:
        line.close()
        if process >= 0:
            os.close(process)
    return 0


def pidfd_of(pid: int) -> int:
    """
    A pidfd of *pid*, or -1 where there is none: it is in a pid namespace that we don't see, or was quicker than we.
    """
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
        raise NoAnswer(f"daemon {pid} was asked to end and has not within {STOP_S:.0f} s; `kill -9 {pid}` ends it at"
                       " once, and its jobs with it")


def _wait_closed(line: Line, until: float) -> None:
    """
    Wait until the connection ends, which it does with the daemon.
    """
    try:
        while True:
            line.ask("ping", {}, until)
            time.sleep(0.05)
    except DaemonAway:
        return
