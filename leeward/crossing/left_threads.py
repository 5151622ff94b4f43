"""
Threads that imported modules have left in the zygote, which must have only one thread.

Runs in:   the zygote, after each module of `preload`.
Source:    proc(5): /proc/self/task/TID/comm, syscall and status
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from leeward._native import threads

#: Seconds that a thread may take to come to rest, and to end. Some threads scan a folder when they start.
PATIENCE_S = 2.0
_TICK_S = 0.001
#: Seconds in futex(2) without being scheduled, after which a thread rests: it waits for work, not just for a lock.
_REST_S = 0.02


def others() -> dict[int, str]:
    """The names of all threads of this process but the caller, by thread id."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            try:
                with open(f"/proc/self/task/{task}/comm", errors="replace") as comm:  # cut after 15 bytes
                    found[int(task)] = comm.read().rstrip("\n")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def leave_one(idle: Collection[str]) -> list[str]:
    """End the threads named in *idle*, each when it rests in futex(2). Returns the names of those that are left."""
    asked: set[int] = set()
    resting: dict[int, tuple[float, str]] = {}  # the time since which a thread rests, and its turns by then
    until = time.monotonic() + PATIENCE_S
    while True:
        here = others()
        if not here or not set(here.values()) <= set(idle) or time.monotonic() > until:
            break
        for tid in here:
            if tid in asked:
                continue
            now, turns = time.monotonic(), _turns_until_it_waits(tid)
            since, before = resting.get(tid, (now, ""))
            if not turns or turns != before:
                resting[tid] = now, turns
            elif now - since > _REST_S:
                threads.end(tid)
                asked.add(tid)
        time.sleep(_TICK_S)
    if asked:
        threads.end_no_more()
    return sorted(here.values())


def _turns_until_it_waits(tid: int) -> str:
    """How often thread *tid* was scheduled, if the thread is in futex(2); otherwise ""."""
    try:
        with open(f"/proc/self/task/{tid}/syscall") as call, open(f"/proc/self/task/{tid}/status", "rb") as status:
            turns = b"".join(line for line in status if b"ctxt_switches" in line).decode()
            return turns if call.read().split()[:1] == [str(threads.FUTEX)] else ""
    except (FileNotFoundError, ProcessLookupError):
        return ""
