"""The daemon's objects are in huge pages from its start on."""

from __future__ import annotations

import subprocess
import sys

from leeward.daemon.memory import ARENAS

#: The reservation is the only mapping of its size.
PROGRAM = """
import sys
from leeward.daemon import memory

def reserved():
    spans = [line.split()[0].split("-") for line in open("/proc/self/maps")]
    return [(int(start, 16), int(end, 16)) for start, end in spans
            if int(end, 16) - int(start, 16) == memory.ARENAS]

before = reserved()
memory.prepare()
import leeward.daemon.main
[(start, end)] = reserved()
there = sum(start <= id(value) < end for module in list(sys.modules.values()) if module.__name__.startswith("leeward")
            for value in vars(module).values())
print(before, there > 1000)
"""


def test_what_a_daemon_imports_is_in_the_reservation() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)

    assert 0 == ARENAS % (2 << 20)
    assert "[] True" == done.stdout.strip()
