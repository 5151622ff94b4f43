"""Freed blocks go back to the kernel from a size on that doesn't move."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from leeward._native import heap
from leeward.errors import KernelRefusal

#: A large block is freed, then one of half its size: was the threshold set, and what stays, in KiB.
KEPT = """
import sys
from leeward._native import heap

def resident():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))

given = heap.give_back(int(sys.argv[1])) if int(sys.argv[1]) else False
before = resident()
for size in (24 << 20, 12 << 20):
    block = b"x" * size
    del block
print(int(given), resident() - before)
"""


def kept(threshold: int) -> tuple[bool, int]:
    done = subprocess.run([sys.executable, "-c", KEPT, str(threshold)], capture_output=True, text=True, check=True)
    given, size = map(int, done.stdout.split())
    return bool(given), size


@pytest.mark.needs("not-emulated")
def test_a_freed_block_goes_back_to_the_kernel() -> None:
    """
    Without the call, the control, the second block stays: the first one raised the threshold. Other allocators, a
    sanitizer's for one, have none. The memory of an emulated process is the emulator's too.
    """
    given, size = kept(1 << 20)

    assert given == ("glibc" == platform.libc_ver()[0] and "libasan" not in Path("/proc/self/maps").read_text())
    if given:
        assert kept(0)[1] > 10 << 10
        assert size < 1 << 10


def test_a_threshold_is_an_int() -> None:
    with pytest.raises(KernelRefusal, match="mallopt"):
        heap.give_back(1 << 31)


#: Objects of a size that the interpreter keeps in arenas, by address: in the reservation, and where those are that
#: replace them.
ARENAS = """
from leeward._native import heap

def mapped():
    return [(int(start, 16), int(end, 16)) for start, end in
            (line.split()[0].split("-") for line in open("/proc/self/maps"))]

def within(objects):
    return sum(start <= id(each) < end for each in objects)

before = {start for start, _ in mapped()}
print(int(heap.huge_arenas(8 << 20)), int(heap.huge_arenas(8 << 20)))
start, end = next((start, end) for start, end in mapped() if start not in before and end - start == 8 << 20)
print(start % (2 << 20))
keep = [b"x" * 400 + str(number).encode() for number in range(8000)]
print(within(keep))
del keep
again = [b"x" * 400 + str(number).encode() for number in range(8000)]
print(within(again))
many = [b"x" * 400 + str(number).encode() for number in range(40000)]
print(within(many))
print(all(each == b"x" * 400 + str(number).encode() for number, each in enumerate(many)))
"""


def test_arenas_are_in_huge_pages_as_long_as_there_is_room() -> None:
    """An arena that was given back is taken again, and what doesn't fit comes from elsewhere."""
    done = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, text=True, check=True)
    first, second, offset, here, again, of_many, whole = done.stdout.split()

    assert ("1", "0") == (first, second)
    assert "0" == offset
    assert min(int(here), int(again)) > 4000  # some fit into arenas of before
    assert 4000 < int(of_many) < 30000
    assert "True" == whole


@pytest.mark.parametrize("room", [0, 1, (2 << 20) + 4096, 1 << 62])
def test_without_room_for_arenas_nothing_changes(room: int) -> None:
    code = f"from leeward._native import heap; print(heap.huge_arenas({room}), len([str(n) for n in range(100000)]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False 100000" == done.stdout.strip()
