"""
The loop of a keeper, in C: an interpreter enters it and jobs come out.

Runs in:   the keeper; what it returns with, in the job.
Needs:     one thread. Linux 5.9 (close_range).
"""

from __future__ import annotations

from collections.abc import Sequence

from leeward._native._shim import ffi, lib
from leeward._native.spawn import Clone
from leeward._native.steps import Cell, Table
from leeward.dataclass import dataclass
from leeward.errors import KernelRefusal


@dataclass(frozen=True, slots=True)
class Born:
    """
    How far a newborn job came on its way.

    Attributes:
        join_error: 0, or the errno with which it could not join its cgroups. No step was taken then.
        affinity_error: the same of the one processor that it may use.
        done: so many steps returned what they must.
        result: what the next one returned.
        hurried: somebody waits for this very runner.
    """

    join_error: int
    affinity_error: int
    done: int
    result: int
    hurried: bool = False


def keep(channel: int, flags: Clone | int, *, ruleset: int, filter: bytes, way: Table,
         ends: Sequence[Cell], pages: Sequence[tuple[int, int]] = ()) -> Born | None:
    """
    Serve until the daemon is gone.

    CPython's duties around a fork (PyOS_BeforeFork, PyOS_AfterFork_Child) aren't done: they are about threads that a
    child lacks and locks that those may hold, and here is one thread alone, which waits outside of the interpreter as
    in any call of C. The hooks of os.register_at_fork are `inside.hooks`' to run. docs/decisions/0015

    Args:
        channel: the keeper's end of its control channel.
        flags: namespaces of init and job.
        ruleset: Landlock ruleset that the inits enter, or -1.
        filter: BPF of the inits.
        way: the steps that each job takes before anything else.
        ends: the cells of *way* for its own ends of job, reply, stdout, stderr and birth.
        pages: address and bytes of memory that each job will write; it is copied for it in one go (Linux 5.14).

    Returns:
        In a job, how far it came. In the keeper None, when there is nobody to serve any more.

    Raises:
        KernelRefusal: the channel broke, or brought what no daemon of ours says (EPROTO).
    """
    program = ffi.from_buffer(filter)
    how = ffi.new("struct lw_runner *")
    how.flags, how.ruleset = flags, ruleset
    how.filter, how.filter_count = program, len(filter) // 8  # struct sock_filter
    path = ffi.new("struct lw_way *")
    path.steps, path.count = way.rows
    hot = ffi.new("struct lw_range[]", list(pages))
    path.pages, path.page_count = hot, len(pages)
    path.ends = [way.address(end) for end in ends]
    born = ffi.new("struct lw_born *")
    sound = [Born(0, 0, path.count, 0, hurried) for hurried in (False, True)]  # made here: a clone pays twice for it
    ret = lib.lw_keep(channel, how, path, born)
    if 1 == ret:
        if born.sound:
            return sound[int(born.hurried)]
        return Born(-born.join_error, -born.affinity_error, born.done, born.result, bool(born.hurried))
    if ret < 0:
        raise KernelRefusal("recvmsg", "the keeper's control channel", -ret)
    return None
