"""Huge pages of the pool that the host's administrator has reserved: catalogue case 210."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.attack import within
from kit.box import Box, control

Only = Callable[..., Box]

POOL = Path("/proc/sys/vm/nr_hugepages")
FREE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
WANTED = 4

#: Four pages of 2 MiB by each call that gives some; each is told what it got, or was refused with.
TAKE = """
import mmap
size, huge = 4 * 2097152, 0x40000
def fill(*args, **flags):
    kept = mmap.mmap(*args, **flags)
    for at in range(0, size, 4096):
        kept[at] = 1
    kept.close()
    return "filled"
def sized(fd):
    os.truncate(fd, size)
    return fd
def tried(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]
tell({
    "private": tried(lambda: fill(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | huge)),
    "shared": tried(lambda: fill(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | huge)),
    "memfd": tried(lambda: fill(sized(os.memfd_create("huge", os.MFD_HUGETLB)), size)),
})
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[None]:
    """Free huge pages on this host, which are given back. No other run of these tests may take or give back any meanwhile."""
    with POOL.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        missing = WANTED - int(FREE.read_text())
        if missing > 0:
            POOL.write_text(str(int(POOL.read_text()) + missing))
        yield
        if missing > 0:
            POOL.write_text(str(int(POOL.read_text()) - missing))


@pytest.mark.smoke
@pytest.mark.needs("huge-pages")
@pytest.mark.lock("seccomp")
@pytest.mark.usefixtures("pool")
def test_c210_cannot_have_huge_pages_of_the_host(held: Box, only: Only) -> None:
    """No limit on memory counts them, under any driver. ENOMEM, as where there are none."""
    with control():
        assert dict.fromkeys(("private", "shared", "memfd"), "filled") == within(only(), TAKE)

    for box in (held, only("seccomp")):
        assert dict.fromkeys(("private", "shared", "memfd"), "ENOMEM") == within(box, TAKE)
