"""
The daemon's part of a snapshot: it gives the child of a kernel, which writes the state, a memory file, and seals that.

Trust: none in what the child says, nor in the bytes, which nobody here reads. The file has the size that was admitted when
it is given away, and the daemon makes its pages, ahead of the child, so that they are charged to its account of the user
and not to the sandbox. When the child has written, the file is sealed; it is refused if something in the sandbox could
still write it, or has changed its size. What the child tells of itself (packages, lost descriptors) is shown to the
snapshot's user alone.

Theory of operation. The kernel's process gets descriptors by its door: a socket, on which the daemon only sends; a
pipe; and the memory file of its zygote, whose pages needn't be in the state. It answers its request when it has forked.
It writes to the pipe a frame with facts; the child how many bytes it needs, and when it has the file how many it has
written, or why it can't. The dump is over when both have answered.
"""

from __future__ import annotations

import _socket
import array
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leeward._native.memfd import SIZE_SEALS, free_huge_pages, huge_pages, seal
from leeward.base.dataclass import dataclass
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.reactor import READ, Reactor, Timer
from leeward.daemon.run.verdict import bug
from leeward.errors import LeewardError, PeerError, SnapshotFailed, told
from leeward.wire import job_frames as wire
from leeward.wire.frames import unpack
from leeward.wire.sandbox_fields import MAX_FACTS

if TYPE_CHECKING:
    from leeward.daemon.run.runner import Runner
    from leeward.daemon.worker.zygote_memory import ZygoteMemory

#: Seconds after which a dump is given up.
DUMP_S = 60.0
#: Times that a file is sealed again which is busy, and seconds before: the kernel itself may hold a page for a moment, as it
#: moves pages where memory is short.
_TRIES, _AGAIN_S = 3, 0.05
#: Bytes of the file that are made in one turn of the loop, some milliseconds; and from which it is closed by a thread.
_PIECE = 4 << 20
#: From so many bytes on huge pages are tried: the kernel first empties lists of every processor, which may take longer than
#: the pages of a small state. So many times as many have to be free in such pages: the kernel would move others else.
_LARGE, _FREE = 16 << 20, 4
_MOST_VALUES = 2 * wire.MAX_PACKAGES + wire.MAX_LOST + 16

_NUMBER = struct.Struct("q")


@dataclass(frozen=True, slots=True)
class KernelState:
    """A process's state: a sealed memory file, which the owner of this object closes, and what the process has told."""

    fd: int
    size: int  # bytes
    python: str
    packages: Mapping[str, str]
    lost: tuple[str, ...]
    memory: ZygoteMemory | None = None  # the file that has what isn't in the state's own
    image: str = ""  # where it was taken: `importing.image_of`


class Dump:
    """
    One dump. *new_file* is called with the bytes that the file and the facts will take, and returns the empty memory file,
    or raises a LeewardError; *done*, once, with the state or the reason why there is none.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, new_file: Callable[[int], int],
                 done: Callable[[KernelState | SnapshotFailed], None]) -> None:
        self._reactor, self._new_file = reactor, new_file
        self._done: Callable[[KernelState | SnapshotFailed], None] | None = done
        self._orders: _socket.socket | None = None
        self._memory: ZygoteMemory | None = None
        self._answers = self._file = self._bell = -1
        self._is_huge = False
        self._read = bytearray()
        self._facts: tuple[str, Mapping[str, str], tuple[str, ...]] | None = None
        self._most = self._made = self._size = self._told = 0
        self._claimed = 0  # what the child says that it has written
        self._answered = False
        self._why = ""
        self._timers: list[Timer] = []
        self._dumped: Callable[[], None] = nothing

    def begin(self, runner: Runner) -> None:
        """Send the kernel's process its descriptors; LeewardError if it takes none, or nobody waits any more."""
        if self._done is None:
            raise SnapshotFailed("nobody waits for it any more")
        door, self._memory, self._dumped = runner.door, runner.memory, runner.dumped
        if door is None:
            raise SnapshotFailed("its process takes no descriptors any more")
        try:
            self._answers, answers = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                near, far = _socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            except OSError:
                os.close(answers)
                raise
        except OSError as error:
            self._let_go()
            raise SnapshotFailed(f"the daemon has no descriptors for it: {told(error)}") from error
        self._orders = near
        near.shutdown(socket.SHUT_RD)
        try:
            os.set_blocking(answers, True)
            fds = [far.fileno(), answers, *([] if self._memory is None else [self._memory.fd])]
            door.socket.sendmsg([wire.BRANCH_WORD], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))],
                                socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError as error:
            self._let_go()
            raise SnapshotFailed(f"its process takes no descriptors: {error}") from error
        finally:
            far.close()
            os.close(answers)
        self._reactor.watch(self._answers, READ, self._hear)
        self._timers.append(self._reactor.after(DUMP_S, partial(self._fail, f"it took more than {DUMP_S:g} s")))

    def answered(self, why: str) -> None:
        """Take the answer of the kernel's process: that it has forked, or *why* it couldn't."""
        self._answered = True
        if why:
            self._fail(why, at_once=True)
        elif self._why or self._size:
            self._finish()

    def give_up(self) -> None:
        """Nobody waits for the snapshot any more."""
        self._done = None
        self._let_go()

    def broken(self, error: Exception) -> None:
        self._fail(bug(error), at_once=True)

    # --- what the child says ------------------------------------------------------

    def _hear(self, _events: int) -> None:
        try:
            data = os.read(self._answers, 1 << 16)
        except BlockingIOError:
            return
        if not data and self._claimed:
            self._reactor.forget(self._answers)  # it has said all
            return
        if not data:
            self._fail("the process that wrote it ended: " + ("it has no room" if self._facts is None else "it was killed"))
            return
        self._read += data
        try:
            self._go_on()
        except PeerError as error:
            self._fail(str(error))
        except (LeewardError, OSError) as error:
            self._fail(str(error))

    def _go_on(self) -> None:
        if self._facts is None:
            body = self._frame()
            if body is None:
                return
            self._facts, self._told = facts_of(body), len(body)
        while len(self._read) >= _NUMBER.size and not self._size:
            number, = _NUMBER.unpack_from(self._read)
            if number < 0:
                if len(self._read) < _NUMBER.size + _NAME:
                    return
                self._fail(_reason(-number, bytes(self._read[_NUMBER.size:])))
                return
            del self._read[:_NUMBER.size]
            if not self._most:
                self._begin_file(number)
            elif self._claimed:
                raise PeerError("the state's size twice")
            else:
                self._claimed = number or -1
                self._end_file()

    def _frame(self) -> bytes | None:
        if len(self._read) < wire.HEADER.size:
            return None
        length, = wire.HEADER.unpack_from(self._read)
        if length > MAX_FACTS:
            raise PeerError("too many facts")
        end = wire.HEADER.size + length
        if len(self._read) < end:
            return None
        body = bytes(self._read[wire.HEADER.size:end])
        del self._read[:end]
        return body

    # --- the file -------------------------------------------------------------------

    def _begin_file(self, most: int) -> None:
        if not most or most % os.sysconf("SC_PAGESIZE"):
            raise PeerError("the state's size isn't one of pages")
        self._file = self._new_file(most + self._told)  # what it tells may be more than its pages
        self._most = most
        os.ftruncate(self._file, most)
        if most < _LARGE or free_huge_pages() < _FREE * most:
            self._make()
            return
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._reactor.watch(self._bell, READ, self._rung)
        _in_thread(self._file, most, self._bell)

    def _rung(self, _events: int) -> None:
        """Huge pages are made, if the number says so; `_make` does the rest."""
        self._is_huge = os.eventfd_read(self._bell) == _HUGE
        self._silence()
        self._make()

    def _silence(self) -> None:
        bell, self._bell = self._bell, -1
        if bell >= 0:
            in_any_case(partial(self._reactor.forget, bell), partial(os.close, bell))

    def _make(self) -> None:
        """
        Make pages of the file, a piece in each turn of the loop, so that others are served meanwhile. The child gets the
        file with the first piece: it writes more slowly. Pages that it reaches first are charged to it.
        """
        if self._file < 0 or self._why:
            return
        try:
            piece, first = min(self._most if self._is_huge else _PIECE, self._most - self._made), not self._made
            os.posix_fallocate(self._file, self._made, piece)
            self._made += piece
            if first:
                assert self._orders is not None
                self._orders.sendmsg([wire.BRANCH_WORD], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                                           array.array("i", [self._file]))],
                                     socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            if self._made < self._most:
                self._reactor.soon(self._make)
            else:
                self._end_file()
        except OSError as error:
            self._fail(f"its memory: {error.strerror}")
        except LeewardError as error:
            self._fail(str(error))

    def _end_file(self) -> None:
        """Take the file, once it is made and written."""
        if self._claimed and self._made == self._most:
            self._written(self._claimed)

    def _written(self, size: int, tries: int = _TRIES) -> None:
        """Seal the file. What could still write to it, or has made it larger, makes it useless."""
        if not 0 < size <= self._most:
            raise PeerError("more was written than the file holds")
        try:
            seal(self._file, fcntl.F_SEAL_WRITE)
        except OSError as error:
            if error.errno == errno.EBUSY and tries:
                self._timers.append(self._reactor.after(_AGAIN_S, partial(self._seal_again, size, tries - 1)))
                return
            raise SnapshotFailed("something in the sandbox still has the file mapped") from error
        about = os.fstat(self._file)
        if about.st_size != self._most or about.st_blocks * 512 > self._most + (2 << 20):
            raise PeerError("the file is larger than it was made")
        whole = -(-size // os.sysconf("SC_PAGESIZE")) * os.sysconf("SC_PAGESIZE")
        os.ftruncate(self._file, whole)
        seal_size(self._file)
        if os.fstat(self._file).st_size != whole:
            raise PeerError("the file's size was changed")
        self._size = whole
        if self._answered:
            self._finish()

    def _seal_again(self, size: int, tries: int) -> None:
        try:
            self._written(size, tries)
        except (LeewardError, OSError) as error:
            self._fail(str(error))

    # --- the end --------------------------------------------------------------------

    def _fail(self, why: str, *, at_once: bool = False) -> None:
        self._why = self._why or why
        if self._answered or at_once:
            if at_once:
                self._why = why  # the kernel's own reason
            self._size = 0
            self._finish()
        elif self._answers >= 0 and self._reactor.watches(self._answers):
            self._reactor.forget(self._answers)  # the kernel has still to answer, perhaps with the reason

    def _finish(self) -> None:
        done, self._done = self._done, None
        made: KernelState | SnapshotFailed = SnapshotFailed(self._why)
        if self._size and self._facts is not None:
            made = KernelState(self._file, self._size, *self._facts, memory=self._memory)
            self._file = -1
        in_any_case(self._let_go, *([partial(done, made)] if done is not None else []))

    def _let_go(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._silence()
        answers, self._answers = self._answers, -1
        file, self._file = self._file, -1
        orders, self._orders = self._orders, None
        if answers >= 0:
            if self._reactor.watches(answers):
                self._reactor.forget(answers)
            os.close(answers)
        if file >= 0:
            close_file(file, self._made)
        if orders is not None:
            orders.close()
        dumped, self._dumped = self._dumped, nothing
        dumped()


#: What is written into a bell: that there are huge pages, or that the kernel gave none.
_HUGE, _SMALL = 1, 2


def _in_thread(file: int, size: int, bell: int) -> None:
    """Have a thread make huge pages of a file, 16 MiB in a millisecond, or longer if others are moved; then ring *bell*."""
    file = os.dup(file)
    try:
        bell = os.dup(bell)
    except OSError:
        os.close(file)
        raise

    def make() -> None:
        made = huge_pages(file, 0, size)
        in_any_case(partial(os.close, file), partial(os.eventfd_write, bell, _HUGE if made else _SMALL),
                    partial(os.close, bell))

    try:
        threading.Thread(target=make, name="makes huge pages", daemon=True).start()
    except RuntimeError as error:
        os.close(file)
        os.close(bell)
        raise SnapshotFailed("the daemon has no thread for it") from error


def seal_size(fd: int) -> None:
    """Seal the size of a state's file: behind its end copies could make pages that count for nobody, only by reading."""
    seal(fd, SIZE_SEALS | fcntl.F_SEAL_SEAL)


def close_file(fd: int, size: int) -> threading.Thread | None:
    """
    Close a memory file. To free many pages takes the loop's time: 50,000 take some 10 ms, which a thread spends, that is
    returned.
    """
    if size <= _PIECE:
        os.close(fd)
        return None
    thread = threading.Thread(target=os.close, args=(fd,), name="closes a state", daemon=True)
    thread.start()
    return thread


#: Bytes of the name behind an error: LW_STATE_NAME.
_NAME = 256


def facts_of(body: bytes) -> tuple[str, Mapping[str, str], tuple[str, ...]]:
    """What a kernel's child tells of itself, whose bytes are hostile; PeerError if it isn't that."""
    fields = unpack(body, _MOST_VALUES, wire.MAX_PACKAGES, "replace")
    if not isinstance(fields, dict) or {"python", "packages", "lost"} != fields.keys():
        raise PeerError("facts of a state: fields are missing, or too many")
    python, packages, lost = fields["python"], fields["packages"], fields["lost"]
    if not isinstance(python, str) or not isinstance(packages, dict) or not isinstance(lost, list) or not all(
            isinstance(each, str) for each in (*packages, *packages.values(), *lost)):
        raise PeerError("facts of a state: not of their types")
    if len(packages) > wire.MAX_PACKAGES or len(lost) > wire.MAX_LOST:
        raise PeerError("facts of a state: too many")
    shown = wire.shown_name
    return shown(python), {shown(name): shown(version) for name, version in packages.items()}, tuple(map(shown, lost))


def _reason(number: int, name: bytes) -> str:
    shown = wire.shown_name(name.partition(b"\0")[0].decode(errors="replace"))
    if number == errno.ENOTSUP:
        return f"it has shared memory: {shown or 'without a name'}"
    try:
        text = os.strerror(number)
    except (ValueError, OverflowError):
        text = "an unknown error"
    return f"its memory can't be taken: {text}{f': {shown}' if shown else ''}"
