"""
The processors that jobs are pinned to, where no controller bounds their processor time.

Runs in:   the daemon.
"""

from __future__ import annotations

import os


def processors_in_turn() -> tuple[int, ...]:
    """
    The processors of this process, for the workers in turn, by their slots.

    The first one is chosen at random. The worker in slot 0 has most jobs. If it had the first processor in every daemon
    of the host, the jobs of all of them would compete for that one while others are idle.
    """
    processors = sorted(os.sched_getaffinity(0))
    first = int.from_bytes(os.urandom(4), "big") % len(processors)
    return (*processors[first:], *processors[:first])
