"""
The limit on the descriptors that jobs may watch by epoll, where the kernel counts the watches of all jobs together.

Holds:     if all workers have one user id, or no cgroup counts memory, the filter passes each new watch to the
           supervisor (supervisor_charges.c). All jobs together get half of what the kernel grants the user, and each
           job as many as it leaves to the others. If no cgroup counts memory, each watch is charged to the job as well.
Leaves:    a removed watch counts until its process has ended, because the supervisor doesn't see the removal.
Source:    epoll(7), /proc/sys/fs/epoll/max_user_watches
"""

from __future__ import annotations

_MOST = "/proc/sys/fs/epoll/max_user_watches"


def granted() -> int:
    """
    The number of watches that all jobs may have together: the other half of what the kernel grants the user is left to
               the daemon and to its user's other programs.
    """
    with open(_MOST) as file:
        return half(file.read())


def half(text: str) -> int:
    """Half of the number in *text*; at least 1."""
    return max(1, int(text) // 2)
