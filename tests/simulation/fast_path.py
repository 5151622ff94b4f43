"""The fast path, as _native/src/fast_path*.c have it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import msgpack

from leeward._native import loop as shim
from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire import job_frames as wire
from leeward.wire.answers import encode_result
from leeward.wire.frames import decode
from leeward.wire.requests import Execute, encode_request

from .kernel import Kernel

if TYPE_CHECKING:
    from .loop import Loop, Stream

MOST_CODE = MOST_OUTPUT = 32 << 10
_TURN_JOBS, _TURN = 128, 64


class Entry:
    """A runner that was offered: to anybody, or (HELD) to a session; or one that has a job."""

    def __init__(self, offer: shim.Offer, state: str, stream: Stream | None) -> None:
        self.offer, self.state, self.stream = offer, state, stream
        self.id = 0
        self.started = 0.0


class FastPath:
    def __init__(self, loop: Loop, kernel: Kernel) -> None:
        self._loop, self._kernel = loop, kernel
        self.entries: dict[int, Entry] = {}  # by the reply pipe
        self.ready = False
        self.refusal = b"", b""
        self.refusing: list[Stream] = []
        self.told: dict[str, int] = {"started": 0, "done": 0, "handed": 0, "refused": 0}

    # --- offers ---------------------------------------------------------------

    def _enter(self, offer: shim.Offer, state: str, stream: Stream | None) -> Entry:
        for fd in (offer.job, offer.out, offer.err):
            self._kernel.file(fd)
        self._loop.expect(offer.reply)
        entry = self.entries[offer.reply] = Entry(offer, state, stream)
        return entry

    def offer(self, offer: shim.Offer) -> None:
        if not offer.session:
            self._enter(offer, "offered", None)
            return
        slot = self._loop.slots.get(offer.stream)
        if slot is None or slot.stream is None:
            raise OSError(errno.ENOENT, "no such stream")
        self._enter(offer, "held", slot.stream)

    def adopt(self, offer: shim.Offer, fd: int, identity: int, started: float) -> None:
        slot = self._loop.slots.get(fd)
        if slot is None or slot.stream is None:
            raise OSError(errno.ENOENT, "no such stream")
        entry = self._enter(offer, "running", slot.stream)
        entry.id, entry.started = identity, started

    def _vacate(self, entry: Entry) -> None:
        self._loop.forget(entry.offer.reply)
        del self.entries[entry.offer.reply]

    def withdraw(self, number: int) -> bool:
        for entry in self.entries.values():
            if entry.offer.number == number:
                self._vacate(entry)
                return True
        return False

    def lost(self, stream: Stream) -> None:
        for entry in list(self.entries.values()):
            if entry.stream is stream:
                self._vacate(entry)

    # --- the request ----------------------------------------------------------

    def feed(self, stream: Stream, data: bytes) -> int:
        """Bytes taken: whole plain requests."""
        taken, before = 0, stream.refused
        while (stream.plain and (stream.shed or any(entry.state != "running" for entry in self.entries.values()))
               and (not stream.waiting or stream.refused > before) and len(self._loop.urgent) < _TURN_JOBS):
            size = 4 + int.from_bytes(data[taken:taken + 4], "big")
            frame = data[taken:taken + size]
            request = self._plain(frame) if len(frame) == size > 4 else None
            if request is None or self._in_flight(stream, request.id) or not (
                    self._start(stream, request) or self._refuse(stream, request)):
                break
            taken += size
        if stream.refused > before:
            self._loop.flush(stream)
        return taken

    def _refuse(self, stream: Stream, request: Execute) -> bool:
        if (request.session or not stream.shed or not self._may_answer(stream)
                or any(entry.state == "offered" for entry in self.entries.values())
                or sum(each.refused for each in self.refusing) >= _TURN):
            return False
        packed = msgpack.packb(request.id)
        before, behind = self.refusal
        size = len(before) + len(packed) + len(behind)
        stream.waiting += size.to_bytes(4, "big") + before + packed + behind
        if not stream.refused:
            self.refusing.append(stream)
        stream.refused += 1
        self.told["refused"] += 1
        return True

    def tell_refused(self) -> None:
        for stream in self.refusing:
            self._loop.tell(shim.REFUSED, fd=stream.fd, value=stream.refused)
            stream.refused = 0
        self.refusing.clear()

    def _plain(self, frame: bytes) -> Execute | None:
        try:
            fields = decode(frame[4:])
            request = Execute(fields["id"], session=fields.get("session", 0), code=fields["code"])
            same = type(request.code) is bytes and len(request.code) <= MOST_CODE and encode_request(request) == frame
        except (PeerError, LookupError, ValueError, TypeError, OverflowError):
            return None
        return request if same else None

    def _in_flight(self, stream: Stream, number: int) -> bool:
        return (any(shim.DONE == event.kind and event.fd == stream.fd and event.id == number
                    for event in self._loop.urgent)
                or any(entry.state == "running" and entry.id == number and entry.stream is stream
                       for entry in self.entries.values()))

    def _next(self, stream: Stream, request: Execute) -> Entry | None:
        for entry in reversed(self.entries.values()):
            if request.session:
                if entry.state == "held" and entry.offer.session == request.session and entry.stream is stream:
                    return entry
            elif entry.state == "offered":
                return entry
        return None

    def _start(self, stream: Stream, request: Execute) -> bool:
        while (entry := self._next(stream, request)) is not None:
            offer = entry.offer
            if request.session and self._kernel.unread(offer.reply):
                self._vacate(entry)
                return False
            assert request.code is not None
            job = Job(code=request.code)
            frame = wire.session_frame(job) if request.session else wire.job_frame(job)
            part = self._kernel.dice.randint(1, len(frame)) if self._kernel.dice.random() < 0.01 else len(frame)
            try:
                written = self._kernel.file(offer.job).write(frame[:part])
            except OSError:
                self._vacate(entry)
                continue
            entry.state, entry.stream, entry.id = "running", stream, request.id
            entry.started = self._kernel.time
            self._tell(shim.STARTED, fd=stream.fd, id=request.id, number=offer.number, session=request.session,
                       data=request.code, size=len(request.code), value=len(frame) - written, at=entry.started)
            self.told["started"] += 1
            self._loop.pressing |= written < len(frame)
            return True
        return False

    def _tell(self, kind: int, **fields: Any) -> None:
        from .loop import Event
        self._loop.urgent.append(Event(kind, **fields))

    # --- the answer -----------------------------------------------------------

    def replied(self, fd: int) -> None:
        entry = self.entries[fd]
        offer, stream = entry.offer, entry.stream
        if entry.state != "running":
            self._vacate(entry)
            return
        assert stream is not None
        kernel = self._kernel
        try:
            reply: bytes = kernel.file(offer.reply).read(len(wire.NOTHING_FRAME))
        except BlockingIOError:
            reply = b""
        sizes = kernel.unread(offer.out), kernel.unread(offer.err)
        process = kernel.processes[offer.number << 32]
        in_order = ((process.leaf.oom, process.leaf.forks, process.denied)
                    == (offer.oom_before, offer.forks_before, offer.denials_before))
        if (not self._may_answer(stream) or reply != wire.NOTHING_FRAME or sum(sizes) > MOST_OUTPUT or not in_order):
            self._vacate(entry)
            self._tell(shim.HANDED, number=offer.number, data=reply, value=len(reply))
            self._loop.pressing = True
            self.told["handed"] += 1
            return
        out, err = (kernel.file(pipe).read(size) if size else b"" for pipe, size in zip((offer.out, offer.err), sizes,
                                                                                     strict=True))
        stream.waiting += encode_result(entry.id, Result(out, err, 0, Outcome.FINISHED, cpu_time=0.001,
                                                         duration=kernel.time - entry.started, memory_peak=1))
        self._loop.flush(stream)
        self._tell(shim.DONE, fd=stream.fd, id=entry.id, number=offer.number, session=offer.session, at=kernel.time,
                   cpu=0.001, peak=1)
        self.told["done"] += 1
        if offer.session:
            entry.state = "held"
        else:
            self._vacate(entry)

    def _may_answer(self, stream: Stream) -> bool:
        return not (stream.halfway or stream.wants_room or stream.owners is not None) \
            and len(stream.waiting) <= MOST_OUTPUT
