"""
A scout by itself: a clone that tells which pages it wrote.

Each test runs a short program of its own: what it clones would otherwise be a copy of pytest.
"""

from __future__ import annotations

import subprocess
import sys

PRELUDE = """
import array, fcntl, mmap, os
from leeward._native._shim import ffi
from leeward._native.job_pipes import Pipes
from leeward._native.keeper_loop import Kept
from leeward._native.scout import scout
from leeward._native.steps import Table
from leeward.errors import KernelRefusal

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 8 * PAGE, mmap.MAP_PRIVATE)
memory[:] = b"a" * len(memory)
address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
null = os.open("/dev/null", os.O_RDWR)
ends = [fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, 64) for _ in range(6)]
out = fcntl.fcntl(os.memfd_create("out"), fcntl.F_DUPFD_CLOEXEC, 64)
kept = Kept(0, filter=b"", way=Table([]), ends=())

def sent():
    return scout(kept, [(address, len(memory))], ends, out)

def end():
    Pipes(3, 4, lone=b"x", workspace="/", nothing=b"", last=True).finish()
"""


def program(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_a_scout_reports_its_writes_and_its_parent_keeps_its_own_pages() -> None:
    said = program("""
if sent():
    memory[3 * PAGE] = memory[5 * PAGE] = 98
    end()
    os._exit(9)
own = [number for number, entry in enumerate(array.array("Q", os.pread(out, 64, 0))) if entry >> 63 and entry >> 56 & 1]
print(own, bytes(memory) == b"a" * len(memory))
""")

    assert "[3, 5] True\n" == said


def test_one_that_does_not_come_to_its_end_is_an_error() -> None:
    said = program("""
try:
    if sent():
        os._exit(3)
except KernelRefusal as error:
    print(error)
""")

    assert "ECHILD" in said
