"""
Finds the pages that every job writes: a clone rehearses once, and reads its own page map.

Runs in:   the zygote, before its first keeper; the rehearsal in a clone of it, which ends.
Source:    pagemap(5): Documentation/admin-guide/mm/pagemap.rst; bit 56, Linux 4.2

A clone shares its parent's memory until it writes, and CPython writes an object's reference count
when it uses the object. So some 450 pages are copied between a runner's clone and its first
job's reply, whatever the job. One by one, each by a fault, that costs 1.5 to 2 ms of processor time;
in one call, madvise(MADV_POPULATE_WRITE), half of it, and before a request arrives.
"""

from __future__ import annotations

import array
import contextlib
import os
import resource
from collections.abc import Iterable, Sequence

from leeward._native.job import Pipes
from leeward._native.spawn import twin
from leeward.inside import files
from leeward.inside import main as inside

_PRESENT, _FILE, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
_PAGE = resource.getpagesize()
_ENTRY = 8  # bytes of /proc/self/pagemap for each page
_LARGEST = 1 << 32  # bytes; a range beyond it is only reserved, such as a sanitizer's shadow of all memory

Range = tuple[int, int]


def written() -> tuple[Range, ...]:
    """
    The pages that a job writes, as ranges (address, bytes); empty if they can't be found.
    """
    read, write = os.pipe()
    pid, pidfd = twin()
    if 0 == pid:
        with contextlib.suppress(BaseException):  # nothing of it is needed, and nothing may come back from here
            files.WORKSPACE = "/"  # there is none yet
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


def _own() -> Iterable[Range]:
    """
    The private pages of this process that no other process maps any more.
    """
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for line in maps.readlines():
            span, rights = line.split(maxsplit=2)[:2]
            if "w" != rights[1] or "p" != rights[3]:
                continue
            start, end = (int(number, 16) for number in span.split("-"))
            if end - start > _LARGEST:
                continue
            pagemap.seek(start // _PAGE * _ENTRY)
            entries = array.array("Q", pagemap.read((end - start) // _PAGE * _ENTRY))
            yield from ranges(start, [bool(entry & _PRESENT and entry & _EXCLUSIVE and not entry & _FILE)
                                      for entry in entries])


def ranges(start: int, wanted: Sequence[bool]) -> Iterable[Range]:
    """
    The *wanted* pages from *start* on; adjacent ones become one range.
    """
    since: int | None = None
    for number, each in enumerate([*wanted, False]):
        if each and since is None:
            since = number
        elif not each and since is not None:
            yield start + since * _PAGE, (number - since) * _PAGE
            since = None
