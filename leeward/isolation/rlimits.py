"""
Resource limits that the kernel enforces per process or per user.

Leaves:    memory, tasks and CPU of the whole job: cgroups limit those, or a watch and rlimits that the daemon sets from
           outside (cgroup/none.py). Bytes of files: the size of the tmpfs limits those. RLIMIT_FSIZE would turn a clear
           ENOSPC into EFBIG, and kill tools by SIGXFSZ.
Source:    getrlimit(2), epoll(7)

The limit on watches of epoll is the kernel's, for all jobs together: if all workers have one user id, or no cgroup counts
memory, the filter passes each new watch to the supervisor (supervisor_charges.c), and each job may have as many as it
leaves to the others. If no cgroup counts memory, each watch is charged to the job as well. A removed one counts until its
process has ended, because the supervisor doesn't see the removal.
"""

from __future__ import annotations

import resource
import struct

from leeward._native.steps import Block, Call, Step, returns
from leeward.base.points import point
from leeward.spec.limits import MIB, Limits

#: RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_STACK, RLIMIT_SIGPENDING. A job needs little of each.
_LOCKED_BYTES = 8 * MIB
_QUEUE_BYTES = 819200
_STACK_BYTES = 8 * MIB
_SIGNALS = 1024

#: Bytes by which a process may have its RLIMIT_DATA raised (supervisor_charges.c). V8 (Node 24) makes 512 MiB for the code of
#: each thread writable at once, of which it touches few: 32 of these. The watch counts what is touched.
CODE = 32 * 512 * MIB


def plan(limits: Limits, ceilings: Limits) -> tuple[tuple[int, int, int], ...]:
    """
    Rows of resource, soft limit and hard limit, in the order in which they are set. A request may ask for as many
    descriptors as the *ceilings* have: the daemon and `inside` lower that hard limit before any code of a job runs.
    """
    return (
        # 1, not 0: if core_pattern is a pipe, the kernel starts the host's handler and gives it the job's memory at
        # every limit except 1; core(5). No core file fits into one byte. The filter prevents a job from lowering the
        # limit.
        (resource.RLIMIT_CORE, 1, 1),
        (resource.RLIMIT_NOFILE, limits.descriptors, max(limits.descriptors, ceilings.descriptors)),
        (resource.RLIMIT_MEMLOCK, _LOCKED_BYTES, _LOCKED_BYTES),
        (resource.RLIMIT_MSGQUEUE, _QUEUE_BYTES, _QUEUE_BYTES),
        (resource.RLIMIT_SIGPENDING, _SIGNALS, _SIGNALS),
        (resource.RLIMIT_STACK, _STACK_BYTES, _STACK_BYTES),
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_RTPRIO, 0, 0),
    )


@point("rlimits.late")
def _late() -> tuple[int, ...]:
    """
    The limits that are set when the last descriptor has been sent: by RLIMIT_NOFILE the kernel also bounds the number
    of descriptors in flight of all processes of one user id, and other jobs may have that many.
    """
    return (resource.RLIMIT_NOFILE,)


@point("rlimits.steps")
def steps(rows: tuple[tuple[int, int, int], ...], *, late: bool = False) -> list[Step]:
    """Set the limits of `_late`, if *late*, or all others, but never above the hard limits of this process."""
    made = []
    for number, soft, hard in rows:
        if late is not (number in _late()):
            continue
        if number == resource.RLIMIT_NOFILE:
            soft, hard = reachable(soft), reachable(hard)
        _, most = resource.getrlimit(number)
        if most != resource.RLIM_INFINITY:
            hard = min(hard, most)
            soft = min(soft, hard)
        made.append(returns(Call.PRLIMIT64, 0, number, Block(struct.pack("QQ", soft, hard)), 0))
    return made


def reachable(descriptors: int) -> int:
    """
    *descriptors*, but no more than half of this process's hard limit: that is compared with what all processes of a user
    id have in flight, and jobs may have as many as their own limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return descriptors if most == resource.RLIM_INFINITY else min(descriptors, most // 2)


def most_data(data: int) -> int:
    """The hard limit of RLIMIT_DATA for a soft one of *data*, as far as this process may set it: CODE."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    return data + CODE if most == resource.RLIM_INFINITY else max(data, min(data + CODE, most))


def granted_watches() -> int:
    """
    The number of watches that all jobs may have together: the other half of what the kernel grants the user is left to
    the daemon and to its user's other programs.
    """
    with open("/proc/sys/fs/epoll/max_user_watches") as file:
        return half(file.read())


def half(text: str) -> int:
    """Half of the number in *text*; at least 1."""
    return max(1, int(text) // 2)
