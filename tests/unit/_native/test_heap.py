"""
Freed blocks go back to the kernel from a size on that doesn't move.
"""

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


def test_a_freed_block_goes_back_to_the_kernel() -> None:
    """
    Without the call, the control, the second block stays: the first one raised the threshold. Other allocators, a
    sanitizer's for one, have none.
    """
    given, size = kept(1 << 20)

    assert given == ("glibc" == platform.libc_ver()[0] and "libasan" not in Path("/proc/self/maps").read_text())
    if given:
        assert kept(0)[1] > 10 << 10
        assert size < 1 << 10


def test_a_threshold_is_an_int() -> None:
    with pytest.raises(KernelRefusal, match="mallopt"):
        heap.give_back(1 << 31)
