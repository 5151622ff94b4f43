"""What the driver without controllers asks the kernel at its start: whether RLIMIT_NPROC holds for this user."""

from __future__ import annotations

import subprocess
import sys

#: Asks again and again beside threads of Python's, each of which wants the interpreter's lock all the time.
ASK = """
import sys, threading
from leeward.isolation.cgroup.none import _tasks_are_refused

threads, times = map(int, sys.argv[1:])
sys.setswitchinterval(1e-5)
over = False

def compute():
    while not over:
        sum(range(50))

made = [threading.Thread(target=compute, daemon=True) for _ in range(threads)]
for thread in made:
    thread.start()
print({_tasks_are_refused() for _ in range(times)}, threading.active_count())
over = True
"""


def asked(threads: int, times: int) -> str:
    return subprocess.run([sys.executable, "-c", ASK, str(threads), str(times)], capture_output=True, text=True,
                          timeout=60, check=True).stdout


def test_whether_tasks_are_refused_is_asked_beside_threads() -> None:
    """The one that asks is a copy of one thread, and waits for none of those that it lacks. The answer is the same."""
    alone = asked(0, 1).split("}")[0]

    assert alone in ("{True", "{False")
    assert f"{alone}}} 9\n" == asked(8, 200)
