"""
Freed blocks go back to the kernel from a size on that doesn't move.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from leeward._native import heap
from leeward.errors import KernelRefusal

#: A large block is freed, then one of half its size: that is what stays, in KiB.
KEPT = """
import sys
from leeward._native import heap

def resident():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))

if int(sys.argv[1]):
    heap.give_back(int(sys.argv[1]))
before = resident()
for size in (24 << 20, 12 << 20):
    block = b"x" * size
    del block
print(resident() - before)
"""


def kept(threshold: int) -> int:
    done = subprocess.run([sys.executable, "-c", KEPT, str(threshold)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif("glibc" != platform.libc_ver()[0], reason="other C libraries have no threshold that moves")
def test_a_freed_block_goes_back_to_the_kernel() -> None:
    """
    Without the call, the control, the second block stays: the first one raised the threshold.
    """
    assert kept(0) > 10 << 10
    assert kept(1 << 20) < 1 << 10


def test_a_threshold_is_an_int() -> None:
    with pytest.raises(KernelRefusal, match="mallopt"):
        heap.give_back(1 << 31)
