"""
A snapshot by itself: memory becomes a file's and keeps its content.

Each test runs a short program of its own: what it changes would otherwise be pytest's memory.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from mmap import PAGESIZE as PAGE

import pytest

from leeward._native.memfd import huge_pages, memory_file, seal

PRELUDE = """
import array, mmap, os, resource
from leeward._native._shim import ffi, lib
from leeward._native.snapshot import MemorySnapshot, gather_arenas, gathered_arenas, thread_storage

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 600 * PAGE, mmap.MAP_PRIVATE)
for number in range(600):
    memory[number * PAGE] = number % 251
address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))

def taken(first, count, protection=mmap.PROT_READ | mmap.PROT_WRITE):
    return MemorySnapshot([(address + first * PAGE, count * PAGE, protection)])

def own():
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // PAGE * 8)
        entries = array.array("Q", pagemap.read(600 * 8))
    return [number for number, entry in enumerate(entries) if entry >> 63 and not entry >> 61 & 1]

def present():
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // PAGE * 8)
        return sum(entry >> 63 for entry in array.array("Q", pagemap.read(600 * 8)))

def whole():
    return [memory[number * PAGE] for number in range(600)] == [number % 251 for number in range(600)]
"""


def program(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


@pytest.mark.parametrize("huge", [True, False])
def test_it_has_the_same_content_and_no_page_of_its_own_until_it_is_written(huge: bool) -> None:
    said = program(f"""
before = own()
print(taken(8, 590).take(huge={huge}), len(before), own() == [*range(8), 598, 599], whole())
memory[9 * PAGE] = 1
print(own() == [*range(8), 9, 598, 599])
""")

    assert "True 600 True True\nTrue\n" == said


def test_huge_pages_are_made_where_a_memory_file_has_no_content_yet() -> None:
    """What was there before stays, and there is none without the kernel's."""
    huge = 2 << 20
    file = memory_file("a test's")
    try:
        os.truncate(file, 3 * huge + PAGE)
        os.pwrite(file, b"x", 1)
        made = huge_pages(file, huge, 2 * huge + PAGE)
        assert os.fstat(file).st_blocks * 512 >= (2 * huge if made else 2 * PAGE)
        assert 3 * huge + PAGE == os.fstat(file).st_size
        assert b"\0x" == os.pread(file, 3 * huge + PAGE, 0).rstrip(b"\0")
        assert huge_pages(file, huge, PAGE)  # none fits
        seal(file, fcntl.F_SEAL_WRITE)  # nothing has it mapped
    finally:
        os.close(file)


@pytest.mark.needs("root")
def test_its_file_is_in_huge_pages_where_the_kernel_gives_them() -> None:
    """By the flags of its pages, which root alone can read: tails of compound pages."""
    said = program("""
import ctypes
def tails():
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap, open("/proc/kpageflags", "rb", buffering=0) as flags:
        pagemap.seek(address // PAGE * 8)
        entries = array.array("Q", pagemap.read(600 * 8))
        return sum(array.array("Q", os.pread(flags.fileno(), 8, (entry & (1 << 55) - 1) * 8))[0] >> 16 & 1
                   for entry in entries if entry >> 63)

huge = 2 << 20
file = os.memfd_create("other")
os.truncate(file, huge)
other = mmap.mmap(file, huge)
room = mmap.mmap(-1, 2 * huge, prot=mmap.PROT_READ)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
start = int(ffi.cast("uintptr_t", ffi.from_buffer(room))) + huge - 1 & -huge
other[:] = b"x" * huge
libc.mmap(start, huge, mmap.PROT_READ, mmap.MAP_SHARED | 0x10, file, 0)
print(0 == libc.madvise(start, huge, 25))  # MADV_COLLAPSE
taken(0, 600).take(huge=False)
whole()
print(tails())
taken(0, 600).take()
print(whole(), tails())
""")
    gives, *told = said.splitlines()

    assert told == ["0", "True 511" if "True" == gives else "True 0"]


def test_a_clone_that_writes_it_has_its_own() -> None:
    said = program("""
taken(0, 600).take()
if 0 == (pid := os.fork()):
    memory[5 * PAGE] = memory[6 * PAGE] = 1
    os._exit(0 if own() == [5, 6] else 1)
print(os.waitpid(pid, 0)[1], whole())
""")

    assert "0 True\n" == said


def test_a_file_that_cannot_hold_it_changes_nothing() -> None:
    said = program("""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300 * PAGE, 300 * PAGE))
print(taken(0, 600).take(), len(own()), whole())
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(taken(0, 100).take())
""")

    assert "False 600 True\nFalse\n" == said


def test_the_file_of_a_snapshot_cannot_be_written() -> None:
    said = program("""
taken(0, 600).take()
(link,) = [f"/proc/self/map_files/{line.split()[0]}" for line in open("/proc/self/maps") if "leeward_zygote" in line]
start, end = (part.lstrip("0") for part in os.path.basename(link).split("-"))
try:
    file = os.open(f"/proc/self/map_files/{start}-{end}", os.O_RDWR)
except PermissionError:
    print("no")  # CAP_CHECKPOINT_RESTORE
else:
    try:
        os.pwrite(file, b"x", 0)
    except PermissionError:
        print("no")
print(whole())
""")

    assert "no\nTrue\n" == said


def test_pages_that_were_only_read_are_dropped() -> None:
    said = program("""
snapshot = taken(0, 590)
snapshot.take()
memory[70 * PAGE] = 7
memory[589 * PAGE + 1] = 8
print(whole(), present())
lib.lw_snapshot_drop(snapshot.taken)
print(present())
snapshot.look()
lib.lw_snapshot_drop(snapshot.taken)
print(present(), own() == [70, 589, *range(590, 600)], memory[70 * PAGE], memory[589 * PAGE + 1], whole())
""")

    assert "False 600\n600\n12 True 7 8 False\n" == said


def test_arenas_lie_side_by_side() -> None:
    said = program("""
gather_arenas()
some = [(number,) for number in range(100_000)]
start, size = gathered_arenas()
print(size > 3 << 20, sum(start <= id(each) < start + size for each in some) > 90_000)
more = [(number,) for number in range(100_000)]
print(sum(start <= id(each) < start + size for each in more) < 50_000, gathered_arenas() == (start, size))
del some, more
print(not start <= thread_storage() < start + size)
""")

    assert "True True\nTrue True\nTrue\n" == said
