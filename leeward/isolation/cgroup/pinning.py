"""
The processors to which jobs are pinned where no controller bounds their processor time.

Runs in:   the daemon.
"""

from __future__ import annotations

import os


def processors_in_turn() -> tuple[int, ...]:
    """
    The processors of this process, in the order in which workers get them by their slots.

    The first processor is chosen at random. The worker in slot 0 has most jobs: if it had the same processor in every
    daemon of the host, the jobs of all daemons would compete for that processor while others are idle.
    """
    processors = sorted(os.sched_getaffinity(0))
    first = int.from_bytes(os.urandom(4), "big") % len(processors)
    return (*processors[first:], *processors[:first])
