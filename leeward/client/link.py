"""
A blocking connection to the daemon, one call at a time.

Runs in:   the blocking client and the CLI's fast path.
Waits:     never without an end. A call may have a deadline of its own; without one it
           lasts as long as the daemon shows signs of life: after PATIENCE_S of silence
           the link asks, and after as much again gives up. How long a job may take is
           the daemon's business, which ends it and answers.
Not here:  threads. Whoever shares a link holds a lock.

Uses `_socket`: `socket` builds enumerations of every constant at import, 10 ms that a
whole `leeward exec` would feel. The class underneath is the same.
"""

from __future__ import annotations

import os
import struct
import time
from _socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_CTRUNC,
    SCM_RIGHTS,
    SO_PEERCRED,
    SO_RCVTIMEO,
    SO_SNDTIMEO,
    SOCK_CLOEXEC,
    SOCK_STREAM,
    SOL_SOCKET,
)
from _socket import socket as Socket

from leeward.client.conversation import MAX_DESCRIPTORS, Conversation, refusal
from leeward.client.slots import LARGE, Slots, bulk, slots_of
from leeward.errors import BadReply, DaemonAway, NoAnswer
from leeward.spec.paths import TRUSTED_VARIABLE
from leeward.wire.frames import frame

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from leeward.wire.replies import Reply

#: Seconds that a connection may take, which a full backlog makes wait.
CONNECT_S = 5.0
#: Seconds of silence before the link asks whether the daemon lives. Longer than any
#: pause of a daemon on a busy machine, short enough for somebody who waits.
PATIENCE_S = 10.0
#: Bytes of one read: a small result fits, and malloc still serves it without mmap(2).
READ = 1 << 16
#: Bytes of ancillary data that one read takes.
ANCILLARY = CMSG_SPACE(MAX_DESCRIPTORS * 4)

#: Longest path in a sockaddr_un; unix(7).
MAX_PATH = 107


def away(path: str, reason: str) -> DaemonAway:
    """
    Nobody is there, and the two cures.
    """
    return DaemonAway(f"no daemon answers on {path!a} ({reason}); start one with `leeward daemon start`,"
                      " or use `leeward run`, which needs none")


def _timeval(seconds: float) -> bytes:
    # Never zero, which would mean for ever.
    micros = max(1, int(seconds * 1e6))
    return struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)


def _connect(sock: Socket, path: str) -> None:
    raw = os.fsencode(path)
    if not raw or b"\0" in raw:
        raise away(path, "that is no path")
    if len(raw) <= MAX_PATH:
        sock.connect(raw)
        return
    folder, name = os.path.split(raw)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(b"/proc/self/fd/%d/%s" % (fd, name))
    finally:
        os.close(fd)


def connect(path: str, wait: bool = True) -> Socket | None:
    """
    A connected socket, whose other end is root's, our own user's, or that of a user whom LEEWARD_TRUSTED_UID names.

    Args:
        wait: up to CONNECT_S while the daemon's backlog is full; without it the socket
            is non-blocking, and None stands for a full backlog.

    Raises:
        DaemonAway: nobody answers there, or a stranger does.
    """
    sock = Socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    try:
        if wait:
            # connect(2) on a Unix socket waits by the send timeout while the backlog is full.
            sock.setsockopt(SOL_SOCKET, SO_SNDTIMEO, _timeval(CONNECT_S))
        else:
            sock.setblocking(False)
        _connect(sock, path)
        sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, _timeval(PATIENCE_S))
        sock.setsockopt(SOL_SOCKET, SO_SNDTIMEO, _timeval(PATIENCE_S))
        _, uid, _ = struct.unpack("3i", sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))
        # The default folder of a user without XDG_RUNTIME_DIR is in /tmp, where anybody
        # may have made it first. Root's own default can't be squatted.
        if os.geteuid() not in (0, uid) and uid != 0 and os.environ.get(TRUSTED_VARIABLE) != str(uid):
            raise away(path, f"the socket is of user {uid}, neither root nor you, nor {TRUSTED_VARIABLE}")
    except BlockingIOError:
        sock.close()
        if not wait:
            return None
        raise away(path, "nobody took the connection") from None
    except OSError as error:
        sock.close()
        raise away(path, (error.strerror or str(error)).lower()) from None
    except DaemonAway:
        sock.close()
        raise
    return sock


def receive(sock: Socket) -> tuple[bytes, list[int]]:
    """
    One read: bytes, none at the end of the stream, and descriptors, which the caller owns.

    Raises:
        OSError: BlockingIOError where there is nothing.
        BadReply: a descriptor was lost on the way.
    """
    data, ancillary, flags, _ = sock.recvmsg(READ, ANCILLARY, MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            count = len(content) // 4
            descriptors += struct.unpack(f"{count}i", content[:count * 4])
    if flags & MSG_CTRUNC:
        for fd in descriptors:
            os.close(fd)
        raise BadReply("a result's descriptor was lost: this process has too many open files")
    return data, descriptors


class Link:
    """
    Calls the daemon on *path*; connects when first needed, and again after a loss.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket: Socket | None = None
        self._conversation = Conversation()
        self._owner = 0
        self._wait = PATIENCE_S
        self._slots: Slots | None = None
        self._asked_for_slots = False  # of this connection

    def call(self, op: str, fields: Mapping[str, Any], deadline: float | None = None) -> tuple[Reply, list[int]]:
        """
        Send a request and wait for its answer.

        Args:
            deadline: a time.monotonic() value, or None.

        Returns:
            The reply, which is no refusal, and its descriptors, which the caller owns.

        Raises:
            DaemonAway, NoAnswer, BadReply: the connection is closed, so that a job of it
                ends; the next call makes a new one.
            Refused: as errors.BY_KIND has it; the connection stays.
        """
        if self._owner != os.getpid():
            self.close()  # after a fork the connection is the parent's; this closes our copy of it
        try:
            if bulk(op, fields) >= LARGE and not self._asked_for_slots:
                self._ask_for_slots(deadline)
        except BaseException:
            self.close()
            raise
        slots, slot = self._slots, None
        if slots is None or bulk(op, fields) < LARGE:
            number, data = self._conversation.request(op, fields)
        else:
            number, payload = self._conversation.payload(op, fields)
            slot = slots.put(payload)
            data = frame(payload) if slot is None else self._conversation.by_slot(number, slot, len(payload))
        try:
            reused = self._socket is not None
            if not self._send(data):
                if not reused:
                    raise away(self.path, "it closed the connection")
                # The daemon was started again since the last call, or found us idle for too long.
                number, data = self._conversation.request(op, fields)
                slot = None
                if not self._send(data):
                    raise away(self.path, "it closed the connection")
            reply, descriptors = self._answer(number, deadline)
        except BaseException:
            self.close()
            raise
        if slots is not None and slot is not None:
            slots.free(slot)
        if reply.ok is None:
            raise refusal(reply)
        return reply, descriptors

    def _ask_for_slots(self, deadline: float | None) -> None:
        """
        Ask for an arena; a daemon that gives none has the request by the socket.
        """
        number, data = self._conversation.request("arena", {})
        if not self._send(data):
            number, data = self._conversation.request("arena", {})
            if not self._send(data):
                raise away(self.path, "it closed the connection")
        self._asked_for_slots = True
        reply, descriptors = self._answer(number, deadline)
        if reply.ok is not None:
            self._slots = slots_of(reply.ok, reply.arenas, descriptors)

    def _send(self, data: bytes) -> bool:
        """
        Send a request; False if the connection was gone before one byte of it was taken.
        """
        sock = self._socket
        if sock is None:
            sock = self._socket = connect(self.path)
            assert sock is not None
            self._owner, self._wait = os.getpid(), PATIENCE_S
        sent = 0
        try:
            sent = sock.send(data)
            if sent < len(data):
                sock.sendall(memoryview(data)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            self._last_words()
            if sent:
                raise away(self.path, "it closed the connection in the middle of a request") from None
            self.close()
            return False
        except BlockingIOError:
            raise NoAnswer(f"the daemon on {self.path!a} has taken nothing for {PATIENCE_S:.0f} s") from None
        return True

    def _last_words(self) -> None:
        """
        Read what the daemon said before it closed: raises its refusal, if there is one.
        """
        try:
            while self._receive():
                pass
        except (OSError, DaemonAway):
            pass

    def _receive(self) -> list[tuple[Reply, list[int]]]:
        """
        One read; the answers in it. BlockingIOError after the wait that is set.
        """
        assert self._socket is not None
        data, descriptors = receive(self._socket)
        answers = self._conversation.received(data, descriptors)
        if not data:
            raise away(self.path, "it went away before it answered")
        return answers

    def _answer(self, number: int, deadline: float | None) -> tuple[Reply, list[int]]:
        asked = False
        while True:
            left = float("inf") if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise NoAnswer(f"no answer from {self.path!a} before the deadline")
            self._patience(min(left, PATIENCE_S))
            try:
                answers = self._receive()
            except BlockingIOError:
                if left <= PATIENCE_S:
                    continue
                if asked:
                    raise NoAnswer(f"the daemon on {self.path!a} gives no sign of life") from None
                asked = True
                self._ask_for_life()
                continue
            except (ConnectionResetError, BrokenPipeError):
                raise away(self.path, "it went away before it answered") from None
            asked = False
            for reply, descriptors in answers:
                if reply.id == number:
                    return reply, descriptors
                for fd in descriptors:  # nothing but the answer to a ping or an interrupt comes here
                    os.close(fd)

    def _ask_for_life(self) -> None:
        self._send(self._conversation.request("ping", {})[1])

    def _patience(self, seconds: float) -> None:
        if seconds != self._wait:
            assert self._socket is not None
            self._socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, _timeval(seconds))
            self._wait = seconds

    def close(self) -> None:
        """
        Close the connection, if there is one; the daemon ends a job of it.
        """
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        self._asked_for_slots = False
        self._conversation.close()
        self._conversation = Conversation()
