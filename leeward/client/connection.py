"""
A blocking connection to the daemon, one call at a time.

Blocks:    always with a bound. A call may have a deadline; without one it waits as long as the daemon is responsive:
           after PATIENCE_S of silence it sends a ping, and after as much silence again it gives up. The daemon bounds the
           job's time.
Not here:  a lock for calls. Threads that share a connection need a lock of their own. Its only lock is for requests that are
           written while another call reads, such as `hurry`.

Uses `_socket`: importing `socket` builds enumerations of every constant, which takes 10 ms of each `leeward exec`. Its
class is the base class of `socket.socket`.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from _socket import (
    CMSG_SPACE,
    MSG_CTRUNC,
    SCM_RIGHTS,
    SO_RCVTIMEO,
    SOL_SOCKET,
)
from _socket import socket as Socket
from _thread import RLock
from contextlib import suppress
from functools import partial

from leeward.client.connecting import PATIENCE_S, away, connect, started, timeval
from leeward.client.conversation import MAX_DESCRIPTORS, Conversation, answered
from leeward.client.retry import Retry
from leeward.client.slots import LARGE, Slots, bulk, slots_of
from leeward.errors import BadReply, Busy, DaemonAway, DaemonError, NoAnswer, quoted
from leeward.wire.frames import frame

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from leeward.base.protocols import Protocol
    from leeward.wire.replies import Reply

if sys.platform == "linux":
    from _socket import MSG_CMSG_CLOEXEC
else:
    MSG_CMSG_CLOEXEC = 0  # `receive` sets the flag when they have come

#: Bytes of one read: a small result fits, and malloc still serves it without mmap(2).
READ = 1 << 16
#: Seconds of one read that waits: a signal that has come just before it began is served after it.
LOOK_S = 0.5
#: Bytes of ancillary data that one read accepts.
ANCILLARY = CMSG_SPACE(MAX_DESCRIPTORS * 4)


def receive(sock: Socket) -> tuple[bytes, list[int]]:
    """Read once: bytes, b"" at the end, and descriptors, which the caller owns; BadReply if the kernel dropped one."""
    data, ancillary, flags, _ = sock.recvmsg(READ, ANCILLARY, MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            count = len(content) // 4
            descriptors += struct.unpack(f"{count}i", content[:count * 4])
    if not MSG_CMSG_CLOEXEC:
        for fd in descriptors:
            os.set_inheritable(fd, False)
    if flags & MSG_CTRUNC:
        for fd in descriptors:
            os.close(fd)
        raise BadReply("a result's descriptor was lost: this process has too many open files")
    return data, descriptors


if TYPE_CHECKING:
    class BesideJob(Protocol):
        """Sends other requests about a job while a call waits for the job's answer."""

        def wait(self, connection: BlockingConnection, number: int,
                 answer: Callable[[Callable[[Reply], None]], Any]) -> Any: ...


class BlockingConnection:
    """
    A connection to the daemon on *path*; connects with the first call, and again when the connection was lost. Without
    *retry_busy* no call is sent again that the daemon refused because it is busy.
    """

    _has_arena = True  # for large requests

    def __init__(self, path: str, retry_busy: bool = True) -> None:
        self.path, self.retry_busy = path, retry_busy
        self._socket: Socket | None = None
        self._conversation = Conversation()
        self._pid = 0
        self._wait = PATIENCE_S
        self._slots: Slots | None = None
        self._asked_for_slots = False  # whether this connection has asked for an arena
        self.sending = RLock()
        self._halfway = False  # whether the holder of `sending` is writing a request
        self._hurried = ""  # "interrupt" or "kill", if a signal handler asked for it during that write
        self._awaited = 0  # the request number of the job that a call waits for; 0 if there is none
        self.seats: dict[tuple[str, int, bool], int] = {}  # free_connections.py fills it; cleared with the connection

    def call(self, op: str, fields: Mapping[str, Any], deadline: float | None = None, *, retry: bool = True,
             idempotent: bool = False, retry_busy: bool = True, reconnect: bool = True,
             functions: BesideJob | None = None) -> tuple[Reply, list[int]]:
        """
        Send a request and wait for its answer. After an error, send it again as retry.py decides.

        Args:
            deadline: a time.monotonic() value, or None.
            retry, idempotent, retry_busy: the arguments `wanted`, `idempotent` and `busy` of `Retry`.
            reconnect: send the request over a new connection if this one has ended. False for a request that is valid
                on this connection alone.
            functions: serves the job until its answer arrives, for instance by running functions that it calls.

        Raises:
            Refused: the daemon refused the request; errors.BY_KIND has the class. The connection stays open.
            DaemonError: after every other error the connection is closed, so its job ends; the next call opens a new
                one.
        """
        if self._pid != os.getpid():
            self.close()  # after a fork the connection is the parent's; this closes the child's copy
        attempts: Retry | None = None
        while True:
            if self._socket is None:
                self._connect(attempts, op)
            try:
                return self._ask(op, fields, deadline, functions)
            except DaemonError as error:
                attempts = attempts or Retry(retry, idempotent, deadline, retry_busy and self.retry_busy)
                pause = attempts.pause(error, time.monotonic())
                if pause is None or not (reconnect or isinstance(error, Busy)):
                    raise
                if not isinstance(error, Busy):
                    self.close()  # the next attempt may reach another daemon than the one that is stopping
            time.sleep(pause)

    def _connect(self, attempts: Retry | None, op: str = "ping") -> None:
        """Connect, to a daemon that is started if need be; DaemonError, after earlier *attempts* that of the last one."""
        try:
            try:
                self._socket = connect(self.path)
            except DaemonAway:
                if not started(self.path, op):
                    raise
                self._socket = connect(self.path)
        except DaemonError as error:
            raise (error if attempts is None else attempts.connect_error(error)) from None
        self._pid, self._wait = os.getpid(), PATIENCE_S

    def _ask(self, op: str, fields: Mapping[str, Any], deadline: float | None,
             functions: BesideJob | None = None) -> tuple[Reply, list[int]]:
        try:
            if self._has_arena and bulk(op, fields) >= LARGE and not self._asked_for_slots:
                self._ask_for_slots(deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, DaemonError):
                error.may_have_run = False  # the job itself was not sent
            raise
        slots, slot = self._slots, None
        with self.sending:
            if slots is None or bulk(op, fields) < LARGE:
                number, data = self._conversation.request(op, fields)
            else:
                number, payload = self._conversation.payload(op, fields)
                slot = slots.put(payload)
                data = frame(payload) if slot is None else self._conversation.by_slot(number, slot, len(payload))
            self._halfway, self._awaited, self._hurried = True, number if op == "execute" else 0, ""
            try:
                self._send(data)
            except BaseException:
                self._awaited = 0
                self.close()
                raise
            finally:
                self._halfway = False
            self._send_hurried()
        try:
            reply, descriptors = self._served(number, deadline, functions)
        except BaseException:
            self.close()
            raise
        finally:
            self._awaited = 0
        if slots is not None and slot is not None:
            slots.free(slot)
        return answered((reply, descriptors))

    def _ask_for_slots(self, deadline: float | None) -> None:
        """Ask for an arena. If the daemon gives none, large requests go over the socket."""
        number, data = self._conversation.request("arena", {})
        self._send(data)
        self._asked_for_slots = True
        reply, descriptors = self._answer(number, deadline)
        if reply.ok is not None:
            self._slots = slots_of(reply.ok, reply.arenas, descriptors)

    def _send(self, data: bytes) -> None:
        """Send a request. DaemonAway if the connection is closed, NoAnswer if the daemon reads nothing."""
        sock, sent = self._socket, 0
        assert sock is not None
        try:
            sent = sock.send(data)
            if sent < len(data):
                sock.sendall(memoryview(data)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            self._read_refusal()
            where = " in the middle of a request" if sent else ""
            raise away(self.path, f"it closed the connection{where}", may_have_run=sent > 0) from None
        except BlockingIOError:
            silent = NoAnswer(f"the daemon on {quoted(self.path)} has read nothing for {PATIENCE_S:.0f} s")
            silent.may_have_run = sent > 0
            raise silent from None

    def _read_refusal(self) -> None:
        """Read the bytes that the daemon sent before it closed the connection. Raises its refusal, if there is one."""
        try:
            while self._receive():
                pass
        except (OSError, DaemonAway):
            pass

    def _receive(self) -> list[tuple[Reply, list[int]]]:
        """Read once, and return the replies in the bytes. Raises BlockingIOError after the receive timeout."""
        assert self._socket is not None
        data, descriptors = receive(self._socket)
        answers = self._conversation.received(data, descriptors)
        if not data:
            raise away(self.path, "it went away before it answered", may_have_run=True)
        return answers

    def _served(self, number: int, deadline: float | None,
                functions: BesideJob | None) -> tuple[Reply, list[int]]:
        if functions is None:
            return self._answer(number, deadline)
        answer: tuple[Reply, list[int]] = functions.wait(self, number, partial(self._answer, number, deadline))
        return answer

    def post(self, op: str, fields: Mapping[str, Any]) -> int:
        """Send a request whose reply another thread or a later call reads; its number. The caller holds `sending`."""
        if self._socket is None or self._pid != os.getpid():
            raise away(self.path, "the connection is closed")
        self._halfway = True  # before the number is taken: a handler's request would take the same one
        try:
            number, data = self._conversation.request(op, fields)
            self._socket.sendall(data)
        finally:
            self._halfway = False
        self._send_hurried()
        return number

    def _send_hurried(self) -> None:
        """Send the interrupt or kill that a signal handler asked for while another request was being written."""
        how, self._hurried = self._hurried, ""
        if how and self._awaited:
            with suppress(OSError, DaemonAway):  # the next read raises the error
                self.post("cancel", {"target": self._awaited, how: True})

    def _answer(self, number: int, deadline: float | None,
                on_other_reply: Callable[[Reply], None] | None = None) -> tuple[Reply, list[int]]:
        """The reply to request *number*; replies to other requests go to *on_other_reply*."""
        asked, heard = False, time.monotonic()
        while True:
            left = float("inf") if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise NoAnswer(f"no answer from {quoted(self.path)} before the deadline")
            self._patience(min(left, LOOK_S, PATIENCE_S))
            try:
                answers = self._receive()
            except BlockingIOError:
                if left <= LOOK_S or time.monotonic() - heard < PATIENCE_S:
                    continue
                if asked:
                    raise NoAnswer(f"the daemon on {quoted(self.path)} doesn't answer pings") from None
                asked, heard = True, time.monotonic()
                self.try_to_post("ping", {})
                continue
            except (ConnectionResetError, BrokenPipeError):
                raise away(self.path, "it went away before it answered", may_have_run=True) from None
            asked, heard = False, time.monotonic()
            for reply, descriptors in answers:
                if reply.id == number:
                    return reply, descriptors
                for fd in descriptors:  # of a reply to a ping or an interrupt, for which no caller waits
                    os.close(fd)
                if on_other_reply is not None:
                    on_other_reply(reply)

    def try_to_post(self, op: str, fields: Mapping[str, Any]) -> None:
        """As `post`, for a request about whose reply nobody asks; the next read raises the error, if there is one."""
        with self.sending, suppress(OSError, DaemonAway):
            self.post(op, fields)

    def hurry(self, how: str, wait: bool = True) -> bool:
        """
        Ask the daemon to "interrupt" or "kill" the job that a call waits for: whether there was one. Call this from
        another thread; or from a signal handler, without *wait*: a call that it interrupts while writing can't go on
        meanwhile, and sends it after its own request.
        """
        if self._halfway and not wait:
            self._hurried = how if self._awaited else ""
            return bool(self._awaited)
        if not self.sending.acquire(wait):
            return False
        try:
            if not self._awaited:
                return False
            self.post("cancel", {"target": self._awaited, how: True})
        except (OSError, DaemonAway):
            pass  # the next read raises the error
        finally:
            self.sending.release()
        return True

    def _patience(self, seconds: float) -> None:
        if seconds != self._wait:
            assert self._socket is not None
            self._socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, timeval(seconds))
            self._wait = seconds

    @property
    def connected(self) -> bool:
        """Whether this process has a connection. The daemon may have closed it meanwhile."""
        return self._socket is not None and self._pid == os.getpid()

    def close(self) -> None:
        """Close the connection, if there is one; the daemon then ends its job."""
        with self.sending:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            if self._slots is not None:
                self._slots.close()
                self._slots = None
            self._asked_for_slots = False
            self.seats.clear()
            self._conversation.close()
            self._conversation = Conversation()
