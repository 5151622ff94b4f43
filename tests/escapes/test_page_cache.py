"""
Escapes by the page cache: what a job can see of it, and do to it, in files that it shares with the host. Case 172.

What reads a file can't be kept from filling the cache, and how long a read takes can be measured: docs/threat-model.md
says what is left. Here is what makes a channel of it: to look without a trace, and to make the cache forget.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.attack import within
from kit.box import Box, control

Only = Callable[..., Box]

#: A file that every sandbox shows and nobody maps or reads meanwhile, of half a megabyte.
SHOWN = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A file of the host that its jobs see, read a moment ago: all of it is in the cache."""
    SHOWN.read_bytes()
    assert is_cached(SHOWN)
    yield SHOWN
    SHOWN.read_bytes()


@pytest.fixture
def writable(folder: Path) -> Path:
    """A file that a job's user may write by its mode, as those of python_env are where their owner runs the daemon."""
    path = folder / "file"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # in pages as they are read, not written
    path.read_bytes()
    path.chmod(0o666)
    return path


def is_cached(path: Path) -> bool:
    """Whether the first page is in the page cache. Asked outside of any sandbox; changes nothing."""
    with path.open("rb", buffering=0) as file:
        try:
            return bool(os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT))
        except BlockingIOError:
            return False


#: Two processes with nothing in common but a file that both may read. One sends a byte: for each bit it makes the cache
#: forget the file, or reads it; the other looks, without a trace. Their turns are kept by two pipes that carry no bit;
#: without them it would be a clock.
SIGNAL = """
def cached(file):
    try:
        return bool(os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT))
    except OSError as error:
        return error.errno != errno.EAGAIN and errno.errorcode[error.errno]
turn, done = os.pipe(), os.pipe()
if 0 == os.fork():
    mine = os.open(path, os.O_RDONLY)
    for bit in range(8):
        if 0x5a >> bit & 1:
            os.pread(mine, 1 << 20, 0)
        else:
            os.posix_fadvise(mine, 0, 0, os.POSIX_FADV_DONTNEED)
        os.write(turn[1], b".")
        os.read(done[0], 1)
    os._exit(0)
theirs, bits = os.open(path, os.O_RDONLY), []
for bit in range(8):
    os.read(turn[0], 1)
    bits.append(cached(theirs))
    os.write(done[1], b".")
os.wait()
tell(bits)
"""


@pytest.mark.lock("seccomp")
def test_c172_cannot_send_a_bit_through_the_page_cache(box: Box, only: Only, shared: Path) -> None:
    """RWF_NOWAIT isn't there, and POSIX_FADV_DONTNEED does nothing: no bit of a byte comes across."""
    with control():
        assert [bool(0x5a >> bit & 1) for bit in range(8)] == within(only(), SIGNAL, path=str(shared))

    for sandbox in (box, only("seccomp")):
        assert ["ENOTSUP"] * 8 == within(sandbox, SIGNAL, path=str(shared))
        assert is_cached(shared)


FORGET = """
file = os.open(path, os.O_RDONLY)
tell([attempt(os.posix_fadvise, file, 0, 0, os.POSIX_FADV_DONTNEED), call("fadvise64", file, 0, 0, 4 | 1 << 32)])
"""


@pytest.mark.lock("seccomp")
def test_c172_cannot_make_the_cache_forget(box: Box, only: Only, shared: Path) -> None:
    """The call succeeds, also with garbage above its 32 bits, and the file stays where it was."""
    with control():
        assert ["", ""] == within(only(), FORGET, path=str(shared))
        assert not is_cached(shared)

    shared.read_bytes()
    for sandbox in (box, only("seccomp")):
        assert ["", ""] == within(sandbox, FORGET, path=str(shared))
        assert is_cached(shared)


PAGE_OUT = """
file = os.open(path, os.O_RDONLY)
libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
libc.mmap.restype = ctypes.c_void_p
size = os.fstat(file).st_size
at = libc.mmap(None, ctypes.c_size_t(size), 1, 2, file, ctypes.c_long(0))
ctypes.string_at(at, size)
tell([libc.madvise(at, size, advice) for advice in (PAGEOUT, PAGEOUT, COLD)])
"""


@pytest.mark.lock("seccomp")
def test_c172_cannot_page_a_shared_file_out(box: Box, only: Only, shared: Path, writable: Path) -> None:
    """MADV_PAGEOUT acts on files that the caller may write by their mode, though they are mounted read-only."""
    given = {"COLD": 20, "PAGEOUT": 21}
    with control():
        assert [0, 0, 0] == within(only(), PAGE_OUT, path=str(writable), **given)
        assert not is_cached(writable)

    writable.read_bytes()
    assert [0, 0, 0] == within(only("seccomp"), PAGE_OUT, path=str(writable), **given)
    assert is_cached(writable)
    assert [0, 0, 0] == within(box, PAGE_OUT, path=str(shared), **given)
    assert is_cached(shared)


#: Which pages of a mapping that was never touched are in memory; and the same asked of the file.
RESIDENT = """
file = os.open(path, os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_size_t(1 << 18), 1, 2, file, ctypes.c_long(0))
vector = (ctypes.c_ubyte * 64)()
span, got = (ctypes.c_uint64 * 2)(0, 1 << 18), (ctypes.c_uint64 * 5)()
said = [call("mincore", at, 1 << 18, vector), call("cachestat", file, span, got, 0)]
tell([*said, sum(vector), got[0]])
"""


@pytest.mark.lock("seccomp")
def test_c172_cannot_ask_which_pages_are_cached(box: Box, only: Only, shared: Path, writable: Path) -> None:
    """mincore tells it of files that the caller may write by their mode, and so does cachestat; a job is refused both."""
    with control():
        said = within(only(), RESIDENT, path=str(writable))
        assert ["", 64] == said[::2]
        assert [["", 64], ["ENOSYS", 0]].count(said[1::2])  # cachestat: Linux 6.5
        with writable.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert 0 == within(only(), RESIDENT, path=str(writable))[2]

    for sandbox, path in ((box, shared), (only("seccomp"), writable)):
        assert ["ENOSYS", "ENOSYS", 0, 0] == within(sandbox, RESIDENT, path=str(path))


UNCACHED = """
file = os.open(path, os.O_RDONLY)
tell([attempt(os.preadv, file, [bytearray(4096)], 0, flags)
      for flags in (os.RWF_NOWAIT, os.RWF_NOWAIT | os.RWF_HIPRI, 0x80, 0x80 | os.RWF_NOWAIT, 0)]
     + [call("preadv2", file, 0, 0, 0, 0, 8 | 1 << 32)])
"""


@pytest.mark.lock("seccomp")
@pytest.mark.smoke
def test_c172_cannot_read_without_a_trace(box: Box, only: Only, shared: Path) -> None:
    """RWF_NOWAIT with whatever beside it, and RWF_DONTCACHE, which drops what it had to read (Linux 6.14)."""
    with control():
        said = within(only(), UNCACHED, path=str(shared))
        assert ["", "", ""] == [said[0], said[4], said[5]]

    for sandbox in (box, only("seccomp")):
        assert [*["ENOTSUP"] * 4, "", "ENOTSUP"] == within(sandbox, UNCACHED, path=str(shared))
