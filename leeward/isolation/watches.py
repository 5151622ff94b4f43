"""
How many descriptors jobs may wait for by epoll, where the kernel counts that for all of them together.

Runs in:   the daemon.
Holds:     where workers have one user id for all, or no cgroup counts memory, the filter has the supervisor asked for
           each watch (supervisor_charges.c). All jobs together get half of what the kernel grants the user, and each
           as many as it leaves to the others; where no cgroup counts memory, it is charged with a watch's, too.
Leaves:    a watch that was removed counts until its process is over: nobody tells the supervisor.
Source:    epoll(7), /proc/sys/fs/epoll/max_user_watches
"""

from __future__ import annotations

_MOST = "/proc/sys/fs/epoll/max_user_watches"


def granted() -> int:
    """
    The watches that all jobs may have together: the other half is the daemon's, and its user's other programs'.

    Raises:
        OSError: /proc can't be read.
    """
    with open(_MOST) as file:
        return half(file.read())


def half(text: str) -> int:
    """
    Of the number that *text* is; 1 at least.
    """
    return max(1, int(text) // 2)
