"""
Finds the pages that every job writes: a clone rehearses once, and reads its own page map.

Runs in: the zygote, before its first keeper; the rehearsal in a clone of it, which ends. Source: pagemap(5):
Documentation/admin-guide/mm/pagemap.rst; bit 56, Linux 4.2

A clone shares its parent's memory until it writes, and CPython writes an object's reference count when it uses the
object. So some 450 pages are copied between a runner's clone and its first job's reply, whatever the job. One by one,
each by a fault, that costs 1.5 to 2 ms of processor time; in one call, madvise(MADV_POPULATE_WRITE), half of it, and
before a request arrives.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import resource
from collections.abc import Iterable

from leeward._native import scout as native
from leeward._native.job_pipes import Pipes
from leeward._native.keeper_loop import Kept
from leeward._native.spawn import twin
from leeward.errors import KernelRefusal
from leeward.inside import main as inside
from leeward.inside import reseeding, workspace_files
from leeward.wire import job_frames as wire

_PRESENT, _FILE, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
_PAGE = resource.getpagesize()
_ENTRY = 8  # bytes of /proc/self/pagemap for each page
_LARGEST = 1 << 32  # bytes; a range beyond it is only reserved, such as a sanitizer's shadow of all memory
#: A small job that defines, calls, formats and prints.
_SMALL = b'def f(x):\n    return [x]\n\n\nprint(f"{f(1)}")\n'

#: A number above all descriptors that a job begins with.
_ABOVE = 64

Range = tuple[int, int]


def written() -> tuple[Range, ...]:
    """The pages that a job writes, as ranges (address, bytes); empty if they can't be found."""
    read, write = os.pipe()
    pid, pidfd = twin()
    if pid == 0:
        with contextlib.suppress(BaseException):  # its result isn't needed, and no exception may leave the clone
            workspace_files.WORKSPACE = "/"  # there is none yet
            inside.rehearse(Pipes)
            ranges = array.array("Q", (number for each in _own() for number in each))
            with open(write, "wb") as pipe:
                pipe.write(ranges.tobytes())
        os._exit(0)
    os.close(write)
    os.close(pidfd)
    with open(read, "rb") as pipe:
        said = array.array("Q", pipe.read())
    os.waitpid(pid, 0)
    return tuple(zip(said[::2], said[1::2], strict=True))


def hurried(kept: Kept, job: int, reply: int) -> tuple[Range, ...]:
    """
    The pages that a small job writes in a runner that begins in C, with the descriptors *job* and *reply*; empty if
    they can't be found. `written` has more, too many to copy for each job: those of a rehearsal, those that the search
    itself writes, and those that the zygote writes meanwhile.
    """
    with open("/proc/self/maps") as maps:
        looked = list(_writable(maps.read()))
    with contextlib.ExitStack() as stack:
        out = _above(stack, os.memfd_create("leeward_scout"))
        try:
            gone = native.scout(kept, looked, _ends(stack), out)
        except KernelRefusal:
            return ()
        if gone:
            try:
                if kept.beginning is not None:
                    inside.serve_started(job, reply)
                reseeding.freshen()  # as runner.py
                inside.serve(Pipes, job, reply)
            finally:
                os._exit(1)
        entries = array.array("Q", os.pread(out, os.fstat(out).st_size, 0))
    found, at = list[Range](), 0
    for start, size in looked:
        found += ranges(start, map(_is_own, entries[at:at + size // _PAGE]))
        at += size // _PAGE
    return tuple(found)


def _ends(stack: contextlib.ExitStack) -> list[int]:
    """The descriptors that such a job begins with: its frame, its output, its reply, and the channel for its Ready."""
    made = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), *os.pipe(), *os.pipe(), *os.pipe(), *os.pipe()]
    above = [_above(stack, fd) for fd in made]
    nothing, _, out, job, frame, _, reply, _, birth = above
    os.write(frame, wire.HEADER.pack(1 + len(_SMALL)) + wire.CODE + _SMALL)
    return [nothing, out, out, job, reply, birth]


def _above(stack: contextlib.ExitStack, fd: int) -> int:
    """A duplicate of *fd* with a number above all descriptors that such a job begins with."""
    above = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(fd)
    stack.callback(os.close, above)
    return above


def _writable(maps: str) -> Iterable[Range]:
    for line in maps.splitlines():
        span, rights = line.split(maxsplit=2)[:2]
        start, end = (int(number, 16) for number in span.split("-"))
        if rights[1] == "w" and rights[3] == "p" and end - start <= _LARGEST:
            yield start, end - start


def _own() -> Iterable[Range]:
    """The private pages of this process that no other process maps any more."""
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, size in _writable(maps.read()):
            pagemap.seek(start // _PAGE * _ENTRY)
            entries = array.array("Q", pagemap.read(size // _PAGE * _ENTRY))
            yield from ranges(start, map(_is_own, entries))


def _is_own(entry: int) -> bool:
    """Whether this entry of the page map is of an anonymous page that no other process maps."""
    return bool(entry & _PRESENT and entry & _EXCLUSIVE and not entry & _FILE)


def ranges(start: int, wanted: Iterable[bool]) -> Iterable[Range]:
    """The *wanted* pages from *start* on; adjacent ones become one range."""
    since: int | None = None
    for number, each in enumerate([*wanted, False]):
        if each and since is None:
            since = number
        elif not each and since is not None:
            yield start + since * _PAGE, (number - since) * _PAGE
            since = None
