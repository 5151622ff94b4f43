"""
Answers on their way: frames, and sealed memory files for what is large, until the client has taken or dropped them.

Owns: the descriptors of these files.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leeward._native.memfd import SEALS, memory_file
from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.native import NativeStream
from leeward.daemon.run.report import LARGE_REPLY, PLACEMENTS, Arena, Report
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.errors import SHORT, BadRequest, Busy
from leeward.spec.outcome import Result
from leeward.wire.answers import Place, encode_result, ok_pieces
from leeward.wire.bundles import size_of
from leeward.wire.fields import MAX_PIECE
from leeward.wire.frames import MAX_REPLY
from leeward.wire.requests import KeptDrop, KeptRead

#: Bytes of a reply beside output and files: an error's text, names of denied calls.
_REST = 1 << 20
#: Bytes that a file takes in a reply beside its name and content, at most.
_AROUND = 16


@dataclass(slots=True)
class Parcel:
    """Bytes to send, with memory files that go with the first of them. *weight*: how many large things wait in it."""

    frame: memoryview
    arenas: list[Arena] = field(default_factory=list)
    weight: int = 0

    def close(self) -> None:
        """Close the descriptors; those that were sent are the receiver's own."""
        while self.arenas:
            self.arenas.pop().close()


def seal(pieces: Iterable[bytes]) -> Arena:
    """Make a sealed memory file of *pieces*, one after the other; OSError if no descriptor or memory is left."""
    fd = memory_file("leeward_results")
    try:
        size = 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                written = os.write(fd, rest)
                rest, size = rest[written:], size + written
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return Arena(fd, size)


def parcels(number: int, answer: Mapping[str, Any]) -> list[Parcel]:
    """The *answer* to request *number*, to send one after the other; large content isn't copied."""
    return [Parcel(memoryview(piece)) for piece in ok_pieces(number, answer)]


def pack(number: int, report: Report, results: str = "auto") -> Parcel:
    """
    Return the answer to request *number*, with the report's result and arenas. *results* is one of placement.RESULTS.
    OSError if files have no room in a reply nor a memory file; ValueError if the result is larger than a reply may be.
    """
    result = report.result
    assert result is not None
    arenas = [] if report.arena is None else [report.arena]
    stdout: Place | None = None
    stderr: Place | None = None
    if report.arena is not None:
        stdout = None if report.arena.stdout is None else (0, *report.arena.stdout)
        stderr = None if report.arena.stderr is None else (0, *report.arena.stderr)
    try:
        files = _files(report, arenas, PLACEMENTS[results].files)
        frame = encode_result(number, result, stdout=stdout, stderr=stderr, files=files,
                              arenas=tuple(arena.size for arena in arenas))
    except BaseException:
        report.close()
        for arena in arenas:
            arena.close()
        raise
    return Parcel(memoryview(frame), arenas, len(arenas) + (len(frame) > LARGE_REPLY))


def _files(report: Report, arenas: list[Arena], most: int) -> dict[str, Place | bytes] | None:
    """
    Put collected files into a further memory file of *arenas* if they have more than *most* bytes, or don't fit into a
    reply; if none can be made, into the reply if they fit. Returns the files whose content isn't taken from *report*.
    """
    result, apart = report.result, report.files
    assert result is not None
    sizes = {name: len(content) for name, content in result.files.items()} if apart is None else {
        name: size for name, (_, size) in apart.places.items()}
    size = sum(sizes.values())
    names = sum(len(name.encode("utf-8", "replace")) + _AROUND for name in sizes)
    if apart is not None:
        if _fits(result, size + names) and size <= most:
            files = apart.contents()
            apart.arena.close()
            return {**files}
        arenas.append(apart.arena)
        return _places(sizes, len(arenas) - 1)
    if not size:
        return None
    fits = _fits(result, size + names)
    if fits and size <= most:
        return None
    try:
        arenas.append(seal(result.files.values()))
    except OSError as error:
        if fits and error.errno in SHORT:
            return None
        raise
    return _places(sizes, len(arenas) - 1)


def _fits(result: Result, files: int) -> bool:
    shown = sum(size_of(kind, content) for bundle in result.results for kind, content in bundle.items())
    return files + shown + len(result.stdout) + len(result.stderr) <= MAX_REPLY - _REST


def _places(sizes: Mapping[str, int], arena: int) -> dict[str, Place | bytes]:
    places: dict[str, Place | bytes] = {}
    offset = 0
    for name, size in sizes.items():
        places[name] = (arena, offset, size) if size else b""
        offset += size
    return places


#: Bytes of small answers that are sent together, at most.
_TOGETHER = 1 << 16


class Outbox:
    """
    The parcels that wait for the client, in order, *size* bytes of them. *own* adds to the count of large results that
    wait. *unread_since*: when the kernel last took a byte of them; None if none waits.
    """

    __slots__ = ("_flying", "_now", "_own", "_parcels", "size", "unread_since")

    def __init__(self, own: Callable[[int], None], now: Callable[[], float]) -> None:
        self._own, self._now = own, now
        self._parcels: deque[Parcel] = deque()
        self._flying = False  # the first one is with the kernel, which will say how much it took
        self.size = 0
        self.unread_since: float | None = None

    def __len__(self) -> int:
        return len(self._parcels)

    def put(self, parcel: Parcel) -> None:
        """Queue *parcel*, whose descriptors belong to the outbox from now on."""
        self._parcels.append(parcel)
        self.size += len(parcel.frame)
        self._own(parcel.weight)

    def flush(self, stream: NativeStream) -> None:
        """Send as many bytes as *stream* takes; OSError if the client is gone."""
        while self._parcels and not self._flying:
            parcel = self._first()
            try:
                sent = stream.send(parcel.frame, [arena.fd for arena in parcel.arenas])
            except BlockingIOError:
                sent = -1
            if sent is not None and sent >= 0:
                self._took(parcel, sent)
                continue
            self._flying = sent is None
            if self.unread_since is None:
                self.unread_since = self._now()
            return

    def sent(self, count: int) -> None:
        """Note that the kernel has taken *count* bytes of the submitted parcel; it is negative if the send has failed."""
        self._flying = False
        if count < 0:
            self._give_up(self._parcels.popleft())
        else:
            self._took(self._parcels[0], count)

    def close(self) -> None:
        """Drop everything but the parcel that the kernel may still be sending, which is dropped when that ends."""
        while len(self._parcels) > self._flying:
            self._give_up(self._parcels.pop())

    def _give_up(self, parcel: Parcel) -> None:
        self.size -= len(parcel.frame)
        self._own(-parcel.weight)
        parcel.close()

    def _first(self) -> Parcel:
        """Return the bytes to send next: consecutive small answers are sent together."""
        first = self._parcels.popleft()
        frames, size, weight = [first.frame], len(first.frame), first.weight
        while self._parcels and not (first.arenas or self._parcels[0].arenas) and \
                size + len(self._parcels[0].frame) <= _TOGETHER:
            one = self._parcels.popleft()
            frames.append(one.frame)
            size += len(one.frame)
            weight += one.weight  # of a large one the rest may be small
        if len(frames) > 1:
            first = Parcel(memoryview(b"".join(frames)), weight=weight)
        self._parcels.appendleft(first)
        return first

    def _took(self, parcel: Parcel, sent: int) -> None:
        """Note that the kernel has taken *sent* bytes of the first parcel, and its descriptors."""
        if parcel.arenas:
            self._own(-len(parcel.arenas))
            parcel.weight -= len(parcel.arenas)
            parcel.close()
        self.unread_since = None
        self.size -= sent
        if sent < len(parcel.frame):
            parcel.frame = parcel.frame[sent:]
        else:
            self._own(-parcel.weight)
            self._parcels.popleft()


class KeptResults:
    """
    The results of one connection whose memory files stay here; *wanted* if its client has asked for that.

    Some programs read sockets in a way that loses descriptors: Node's streams, or a relay in between. Such a client
    says so once (`keep_results`). The files stay in a table under the number of the answered request, and `kept_read`
    copies from them with pread(2), so the client sets the pace. Each file counts as a large result that waits: with too
    many new jobs are refused, and a client that reads nothing for as long as a reply may be unread is closed.
    """

    __slots__ = ("_files", "_now", "_own", "_since", "wanted")

    def __init__(self, own: Callable[[int], None], now: Callable[[], float]) -> None:
        self._own, self._now = own, now
        self._files: dict[int, list[Arena]] = {}
        self._since = 0.0
        self.wanted = False

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, request: int) -> bool:
        return request in self._files

    def parcel(self, request: int, parcel: Parcel) -> Parcel:
        """Return the answer to *request*. Its memory files are kept here if the client has asked for that."""
        if self.wanted and parcel.arenas:
            self._drop(request)  # a number may be used again when it was answered
            if not self._files:
                self._since = self._now()
            files, parcel.arenas = parcel.arenas, []
            self._files[request] = files
            parcel.weight -= len(files)
            self._own(len(files))
        return parcel

    def read(self, request: KeptRead) -> bytes:
        """Return a piece of a file, empty beyond its end; BadRequest if there is no such file."""
        files = self._files.get(request.target, [])
        if request.arena >= len(files):
            raise BadRequest(f"no memory file {request.arena} of an answer to request {request.target} is kept")
        arena = files[request.arena]
        size = min(request.size or MAX_PIECE, max(0, arena.size - request.offset))
        self._since = self._now()
        return os.pread(arena.fd, size, request.offset) if size else b""

    def drop(self, request: KeptDrop) -> bool:
        """Close the files of one answer. Returns whether there were any."""
        self._since = self._now()
        return self._drop(request.target)

    def _drop(self, request: int) -> bool:
        files = self._files.pop(request, [])
        self._own(-len(files))
        for arena in files:
            arena.close()
        return bool(files)

    def late(self, seconds: float) -> bool:
        """Whether the client has neither read nor dropped any of the files for more than *seconds*."""
        return bool(self._files) and self._now() - self._since > seconds

    def close(self) -> None:
        """Close all files, and keep none from now on: answers may follow the one that showed that the client is gone."""
        self.wanted = False
        for request in list(self._files):
            self._drop(request)


#: Bytes and files of results that one guest may have; files of all guests together, and the part of the host's watches that
#: these may take.
MOST_LENT, MOST_FILES, FILES, PART_OF_WATCHES = 1 << 30, 1024, 4096, 8


class LentFiles:
    """
    Results in memory files that one guest has, or is about to get: `size` bytes count until nobody has the file. The owner
    and root use their own memory.

    The daemon wrote the pages, so the kernel charges them to it for as long as any process holds the file, also by a
    mapping or in a message on its way.
    """

    __slots__ = ("_files", "_uses", "size")

    def __init__(self, uses: LastUses) -> None:
        self._uses = uses
        self._files: dict[int, int] = {}  # bytes by the number of the file's watch
        self.size = 0

    def __len__(self) -> int:
        return len(self._files)

    def lend(self, arena: Arena) -> None:
        """Count *arena*, which gets an open file that can only be read. Busy if the host has no watch left; OSError."""
        theirs = os.open(f"/proc/self/fd/{arena.fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            number = self._uses.watch(theirs, self._gone)
        except Busy:
            os.close(theirs)
            raise
        os.close(arena.fd)
        arena.fd = theirs
        self._files[number] = size = os.fstat(theirs).st_blocks * 512
        self.size += size

    def _gone(self, number: int) -> None:
        self.size -= self._files.pop(number)

    @property
    def full(self) -> bool:
        """Whether the guest has reached the bound."""
        if self._is_full:
            self._uses.wait(0.0)
        return self._is_full

    @property
    def _is_full(self) -> bool:
        return self.size >= MOST_LENT or len(self._files) >= MOST_FILES
