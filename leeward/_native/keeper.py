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


class Kept:
    """
    What a keeper makes its runners of, laid out for C beforehand: what is made in the keeper itself costs it pages.

    Args:
        flags: namespaces of init and job.
        filter: BPF of the inits.
        way: the steps that each job takes before anything else.
        ends: the cells of *way* for its own ends of job, reply, stdout, stderr and birth.
    """

    def __init__(self, flags: Clone | int, *, filter: bytes, way: Table, ends: Sequence[Cell]) -> None:
        self.flags, self.filter, self.way, self.ends = flags, filter, way, ends
        self._program = ffi.from_buffer(filter)
        self.how = ffi.new("struct lw_runner *")
        self.how.flags = flags
        self.how.filter, self.how.filter_count = self._program, len(filter) // 8  # struct sock_filter
        self.path = ffi.new("struct lw_way *")
        self.path.steps, self.path.count = way.rows
        self.path.ends = [way.address(end) for end in ends]
        self.born = ffi.new("struct lw_born *")
        self.sound = [Born(0, 0, self.path.count, 0, hurried) for hurried in (False, True)]

    def copy_at_once(self, pages: Sequence[tuple[int, int]]) -> None:
        """
        Address and bytes of memory that each job will write: it is copied for it in one go (Linux 5.14).
        """
        self._pages = ffi.new("struct lw_range[]", list(pages))
        self.path.pages, self.path.page_count = self._pages, len(pages)


def keep(channel: int, ruleset: int, kept: Kept) -> Born | None:
    """
    Serve until the daemon is gone.

    CPython's duties around a fork (PyOS_BeforeFork, PyOS_AfterFork_Child) aren't done: they are about threads that a
    child lacks and locks that those may hold, and here is one thread alone, which waits outside of the interpreter as
    in any call of C. The hooks of os.register_at_fork are `inside.hooks`' to run. docs/decisions/0015

    Args:
        channel: the keeper's end of its control channel.
        ruleset: Landlock ruleset that the inits enter, or -1.

    Returns:
        In a job, how far it came. In the keeper None, when there is nobody to serve any more.

    Raises:
        KernelRefusal: the channel broke, or brought what no daemon of ours says (EPROTO).
    """
    kept.how.ruleset = ruleset
    ret = lib.lw_keep(channel, kept.how, kept.path, kept.born)
    if 1 == ret:
        born = kept.born
        if born.sound:
            return kept.sound[int(born.hurried)]
        return Born(-born.join_error, -born.affinity_error, born.done, born.result, bool(born.hurried))
    if ret < 0:
        raise KernelRefusal("recvmsg", "the keeper's control channel", -ret)
    return None
