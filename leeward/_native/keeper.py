"""
The loop of a keeper, in C: an interpreter enters it and jobs come out.

Runs in:   the keeper; what it returns with, in the job.
Needs:     one thread. Linux 5.9 (close_range).
"""

from __future__ import annotations

from dataclasses import dataclass

from leeward._native._shim import ffi, lib
from leeward._native.spawn import Clone
from leeward.errors import KernelRefusal


@dataclass(frozen=True, slots=True)
class Born:
    """
    What a newborn job has.

    Attributes:
        job, reply, out, err, birth: its ends, under the numbers that the keeper gave them.
        join_error: 0, or the errno with which it could not join its cgroups.
        cpu: the one processor that it may use, or None.
    """

    job: int
    reply: int
    out: int
    err: int
    birth: int
    join_error: int
    cpu: int | None


def keep(channel: int, flags: Clone | int, *, ruleset: int, filter: bytes) -> Born | None:
    """
    Serve until the daemon is gone.

    CPython's duties before a fork are done once, at the entry; those after it in every job.

    Args:
        channel: the keeper's end of its control channel.
        flags: namespaces of init and job.
        ruleset: Landlock ruleset that the inits enter, or -1.
        filter: BPF of the inits.

    Returns:
        In a job, what it was born with. In the keeper None, when there is nobody to serve any more.

    Raises:
        KernelRefusal: the channel broke, or brought what no daemon of ours says (EPROTO).
    """
    program = ffi.from_buffer(filter)
    how = ffi.new("struct lw_runner *")
    how.flags, how.ruleset = flags, ruleset
    how.filter, how.filter_count = program, len(filter) // 8  # struct sock_filter
    born = ffi.new("struct lw_born *")
    lib.lw_before_fork()
    ret = lib.lw_keep(channel, how, born)
    if 1 == ret:
        lib.lw_after_fork_child()
        return Born(born.job, born.reply, born.out, born.err, born.birth, -born.join_error,
                    None if born.cpu < 0 else born.cpu)
    lib.lw_after_fork_parent()
    if ret < 0:
        raise KernelRefusal("recvmsg", "the keeper's control channel", -ret)
    return None
