"""
The shim's loop, as _native/src/loop.c and its two ways to the kernel have it, over the simulated kernel; and epoll for
the reference.

What is modelled is what Python sees: which events there are, in which order they may come in a turn, what comes late,
and what is still told of a use of a descriptor that is over.
"""

from __future__ import annotations

import array
import errno
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kit.reference_reactor import ReferenceReactor
from leeward._native import loop as shim
from leeward.daemon.loop.native import NativeReactor

from .fast_path import FastPath
from .kernel import ERR, HUP, IN, OUT, Kernel
from .sockets import Near

#: Seconds of virtual time that a turn takes at least, so that nothing can turn without end.
_TURN_S = 2e-6
_TURN = 64
_CHUNK, _CHUNKS = 1 << 16, 16
_STAY_S, _COURTESY_S = 0.001, 0.0001
#: A loop that turns so often without a moment's sleep has something that spins.
SPINS = 3000


class Event:
    """struct lw_event."""

    __slots__ = ("at", "cpu", "data", "fd", "id", "kind", "number", "peak", "session", "size", "value")

    def __init__(self, kind: int, **fields: Any) -> None:
        self.kind = kind
        self.fd = self.value = self.number = self.id = self.session = self.size = self.peak = 0
        self.at = self.cpu = 0.0
        self.data = b""
        for name, value in fields.items():
            setattr(self, name, value)


class Stream:
    """struct lw_stream."""

    def __init__(self, fd: int, number: int, near: Near) -> None:
        self.fd, self.number, self.near = fd, number, near
        self.reading = True
        self.asked = True  # ring: a receive is in it
        self.plain = self.wants_room = self.halfway = self.shed = False
        self.refused = 0  # in this turn
        self.waiting = bytearray()  # answers of the fast path that the kernel hasn't taken
        self.sending = bytearray()  # ring: what flies of them
        self.owners: memoryview | None = None  # ring: what flies is the owner's
        self.fds: tuple[int, ...] = ()
        self.flying = False
        self.lands = 0.0


class Slot:
    """One use of a descriptor: watched, a stream, or a job's reply pipe for the fast path."""

    def __init__(self, fd: int, *, events: int = 0, stream: Stream | None = None, reply: bool = False) -> None:
        self.fd, self.stream, self.reply = fd, stream, reply
        self.wanted = (IN if reply else events) | HUP | ERR
        self.file: Any = None


class Loop:
    """
    leeward._native.loop.Loop.

    Args:
        ring: as by io_uring: sends fly, and a receive may be under way when it isn't wanted any more.
    """

    def __init__(self, kernel: Kernel, *, ring: bool) -> None:
        self._kernel, self._ring = kernel, ring
        self.slots: dict[int, Slot] = {}
        kernel.watched = self.slots
        self._dead: list[Stream] = []  # ring: forgotten while a send of theirs flew
        self.urgent: list[Event] = []
        self.others: list[Event] = []
        self.pressing = False
        self.events: list[Event] = []
        self._chunks = 0
        self._spins = 0
        self.fast = FastPath(self, kernel)

    # --- a turn ---------------------------------------------------------------

    def turn(self, patience_ns: int) -> int:
        kernel = self._kernel
        before = kernel.time
        ends = float("inf") if patience_ns < 0 else kernel.time + (patience_ns + 1) * 1e-9  # a clock goes on
        self.urgent, self.others, self.pressing, self._chunks = [], [], False, 0
        self._go_on(ends)
        while (until := self._stays(ends)) > kernel.time:
            self._go_on(until)
        self.fast.tell_refused()
        self._spins = self._spins + 1 if before == kernel.time else 0
        assert self._spins < SPINS, f"{SPINS} turns without a moment's sleep"
        if self.urgent or self.others:
            kernel.time += _TURN_S * kernel.dice.random()
        self.events = self.urgent + self.others
        return len(self.events)

    def _stays(self, ends: float) -> float:
        if self.pressing or self.others or not self.urgent:
            return 0.0
        for event in self.urgent:
            counted = shim.STARTED != event.kind and not event.session
            ends = min(ends, event.at + (_COURTESY_S if counted else _STAY_S))
        return ends

    def _go_on(self, until: float) -> None:
        for slot in self.slots.values() if self._ring else ():
            if slot.stream is not None and slot.stream.reading:
                slot.stream.asked = True
        for slot, events in self._kernel.wait(until, self._ready)[:_TURN]:
            if isinstance(slot, Stream):
                self._landed(slot)
            elif self.slots.get(slot.fd) is not slot:
                continue
            elif slot.stream is not None:
                self._serve(slot.stream, events)
            elif slot.reply:
                self.fast.replied(slot.fd)
            else:
                self.tell(shim.READY, fd=slot.fd, value=events)

    def _ready(self) -> list[tuple[Any, int]]:
        ready: list[tuple[Any, int]] = []
        for slot in self.slots.values():
            stream = slot.stream
            events = slot.file.events() & (slot.wanted if stream is None else self._wanted(stream))
            if events:
                ready.append((slot, events))
            elif stream is not None and self._lands(stream):
                ready.append((stream, 0))
        ready += [(stream, 0) for stream in self._dead]
        if len(ready) > 1:
            self._kernel.dice.shuffle(ready)
        return ready

    def _wanted(self, stream: Stream) -> int:
        if self._ring:
            # A poll for the peer's going where nothing is received.
            return IN if stream.asked else HUP
        reading = IN if stream.reading else 0
        return reading | HUP | (OUT if stream.waiting or stream.wants_room else 0)

    def tell(self, kind: int, **fields: Any) -> None:
        self.others.append(Event(kind, **fields))

    # --- streams --------------------------------------------------------------

    def _serve(self, stream: Stream, events: int) -> None:
        if events & OUT:
            if stream.waiting:
                self.flush(stream)
            if stream.wants_room and not stream.waiting:
                stream.wants_room = False
                self.tell(shim.ROOM, fd=stream.fd)
        if not events & ~OUT:
            return
        if stream.asked if self._ring else stream.reading:
            self._receive(stream)
        elif events & HUP:
            self.tell(shim.DATA, fd=stream.fd, value=-errno.EPIPE)

    def _receive(self, stream: Stream) -> None:
        if self._chunks == _CHUNKS:
            return
        try:
            data = stream.near.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self.tell(shim.DATA, fd=stream.fd, value=-(error.errno or 0))
            stream.asked = False
            return
        stream.asked = False
        if not data:
            self.tell(shim.DATA, fd=stream.fd, value=0)
            return
        taken = self.fast.feed(stream, data)
        self._chunks += 1
        self.pressing |= _CHUNKS == self._chunks
        if taken < len(data):
            stream.plain = False
            self.tell(shim.DATA, fd=stream.fd, value=len(data) - taken, data=data[taken:])

    def flush(self, stream: Stream) -> None:
        """Let the kernel have what the fast path answered."""
        if self._ring:
            if stream.waiting and not stream.flying:
                stream.sending, stream.waiting, stream.owners = stream.waiting, bytearray(), None
                self._fly(stream)
            return
        try:
            while stream.waiting:
                del stream.waiting[:stream.near.sendmsg([bytes(stream.waiting)])]
        except BlockingIOError:
            return
        except OSError:
            stream.waiting.clear()

    # --- sends that fly -------------------------------------------------------

    def _fly(self, stream: Stream) -> None:
        delay = 1e-5 * self._kernel.dice.random()
        stream.flying, stream.lands = True, self._kernel.time + delay
        self._kernel.after(delay, lambda: None)

    def _lands(self, stream: Stream) -> bool:
        near = stream.near
        return stream.flying and self._kernel.time >= stream.lands and (near.closed or near.over or near.room > 0)

    def _landed(self, stream: Stream) -> None:
        owners, stream.owners, stream.flying = stream.owners, None, False
        slot = self.slots.get(stream.fd)
        alive = slot is not None and slot.stream is stream
        if not alive:
            self._dead.remove(stream)
        if owners is not None:
            result = self._send_now(stream, owners, stream.fds) if alive else -errno.ECANCELED
            stream.halfway = result < len(owners)
            self.tell(shim.SENT, fd=stream.fd, number=stream.number, value=result)
        elif alive:
            sent = self._send_now(stream, memoryview(bytes(stream.sending)), ())
            del stream.sending[:sent if sent > 0 else len(stream.sending)]
            if stream.sending:
                self._fly(stream)
                return
        if not alive:
            return
        self.flush(stream)
        if stream.wants_room and not stream.flying:
            stream.wants_room = False
            self.tell(shim.ROOM, fd=stream.fd)

    def _send_now(self, stream: Stream, data: memoryview, fds: Sequence[int]) -> int:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            return stream.near.sendmsg([bytes(data)], beside)
        except BlockingIOError:
            return -errno.EAGAIN
        except OSError as error:
            return -(error.errno or errno.EIO)

    # --- as native.py calls it ------------------------------------------------

    def _stream_of(self, fd: int) -> Stream:
        stream = self.slots[fd].stream
        assert stream is not None
        return stream

    def _use(self, slot: Slot) -> None:
        if slot.fd in self.slots:
            raise OSError(errno.EEXIST, "used already")
        slot.file = self._kernel.file(slot.fd)
        self.slots[slot.fd] = slot

    def watch(self, fd: int, events: int) -> None:
        self._use(Slot(fd, events=events))

    def change(self, fd: int, events: int) -> None:
        self.slots[fd].wanted = events | HUP | ERR

    def forget(self, fd: int) -> None:
        slot = self.slots.pop(fd, None)
        if slot is None or slot.stream is None:
            return
        self.fast.lost(slot.stream)
        if slot.stream.flying:
            slot.stream.lands = self._kernel.time
            self._dead.append(slot.stream)

    def expect(self, fd: int) -> None:
        """For the fast path: a job's reply."""
        self._use(Slot(fd, reply=True))

    def stream(self, fd: int, number: int, *, guarded: bool, reading: bool = True) -> None:
        stream = Stream(fd, number, self._kernel.file(fd))
        stream.reading = stream.asked = reading
        self._use(Slot(fd, stream=stream))

    def read(self, fd: int, on: bool) -> None:
        stream = self._stream_of(fd)
        stream.reading = on
        stream.asked |= on

    def fast_path(self, fd: int, on: bool) -> None:
        self._stream_of(fd).plain = on

    def send(self, fd: int, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        stream = self._stream_of(fd)
        if stream.waiting or stream.flying:
            stream.wants_room = True
            raise BlockingIOError
        if self._ring:
            stream.owners, stream.fds = data, tuple(fds)
            self._fly(stream)
            return None
        sent = self._send_now(stream, data, fds)
        if -errno.EAGAIN == sent:
            stream.wants_room = True
            raise BlockingIOError
        if sent < 0:
            raise OSError(-sent, "the stream is broken")
        stream.halfway = sent < len(data)
        return sent

    def backlog(self, fd: int) -> int:
        stream = self._stream_of(fd)
        return len(stream.waiting) + len(stream.sending)

    def set_templates(self, templates: object) -> None:
        self.fast.ready = True

    def offer(self, offer: shim.Offer) -> None:
        self.fast.offer(offer)

    def adopt(self, offer: shim.Offer, fd: int, identity: int, started: float) -> None:
        self.fast.adopt(offer, fd, identity, started)

    def withdraw(self, number: int) -> bool:
        return self.fast.withdraw(number)

    def refusal(self, before: bytes, behind: bytes) -> None:
        self.fast.refusal = before, behind

    def shed(self, fd: int, on: bool) -> None:
        slot = self.slots.get(fd)
        if slot is None or slot.stream is None:
            raise OSError(errno.ENOENT, "no such stream")
        slot.stream.shed = on

    def close(self) -> None:
        return


class ShimReactor(NativeReactor):
    """The daemon's reactor over that loop."""

    def __init__(self, kernel: Kernel, *, ring: bool, fast_path: bool) -> None:
        self.kernel, self._ring = kernel, ring
        self.now = kernel.now  # what a reactor's clock is for
        super().__init__("socket", fast_path=fast_path)

    def _open(self) -> None:
        self._uring = self._ring
        self.loop = Loop(self.kernel, ring=self._ring)
        self._loop = self.loop  # type: ignore[assignment]  # as far as it is used


#: leeward._native.loop, as loop/native.py sees it.
SHIM = SimpleNamespace(**{name: value for name, value in vars(shim).items() if name.isupper()},
                       data_of=lambda event, size: bytes(event.data[:size]))


class Epoll:
    """select.epoll, for the reference."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._events: dict[int, int] = {}
        kernel.watched = self._events
        self._spins = 0

    def register(self, fd: int, events: int) -> None:
        if fd in self._events:
            raise FileExistsError
        self._kernel.file(fd)
        self._events[fd] = events

    def modify(self, fd: int, events: int) -> None:
        if fd not in self._events:
            raise FileNotFoundError
        self._events[fd] = events

    def unregister(self, fd: int) -> None:
        del self._events[fd]

    def poll(self, patience: float) -> list[tuple[int, int]]:
        kernel = self._kernel
        before = kernel.time
        ready = kernel.wait(float("inf") if patience < 0 else kernel.time + patience + 1e-9, self._ready)
        if len(ready) > 1:
            kernel.dice.shuffle(ready)
        self._spins = self._spins + 1 if before == kernel.time else 0
        assert self._spins < SPINS, f"{SPINS} turns without a moment's sleep"
        if ready:
            kernel.time += _TURN_S * kernel.dice.random()
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        files = self._kernel.files
        return [(fd, events) for fd, wanted in self._events.items()
                if (events := files[fd].events() & (wanted | HUP | ERR))]

    def close(self) -> None:
        return


class VirtualReactor(ReferenceReactor):
    """The one in Python."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.now = kernel.now  # what a reactor's clock is for
        super().__init__()

    def _open(self) -> None:
        self._epoll = Epoll(self.kernel)  # type: ignore[assignment]  # as far as it is used
