"""
The loop of a keeper, in C: an interpreter enters it and jobs come out.

Runs in:   the keeper; what it returns with, in the job.
Needs:     one thread. Linux 5.9 (close_range).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward._native.snapshot import Snapshot
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
        beside: 0 for a runner's first process; else the control.Kind of the copy that it is.
        begun: it has said that it is ready, and taken its job's frame.
    """

    join_error: int
    affinity_error: int
    done: int
    result: int
    hurried: bool = False
    beside: int = 0
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """
    How one kind of process comes to its locks.

    Attributes:
        table: its steps.
        ends: the cells of *table* for what its order brings, as struct lw_way says.
        layers: of each step, a number of control.LAYERS.
    """

    table: Table
    ends: Sequence[Cell]
    layers: Sequence[int] = ()


class Kept:
    """
    What a keeper makes its runners of, laid out for C beforehand: what is made in the keeper itself costs it pages.

    Args:
        flags: namespaces of init and job.
        filter: BPF of the inits.
        way: the steps that each job takes before anything else.
        ends: the cells of *way* for its own ends of job, reply, stdout, stderr and birth.
        beside: the ways of what comes beside a job, in the order of control.Kind. Empty where
            nothing does.
        once: the number of the step that the keeper's first job alone takes; 0 where there is none.
    """

    def __init__(self, flags: Clone | int, *, filter: bytes, way: Table, ends: Sequence[Cell],
                 beside: Sequence[Way] = (), once: int = 0) -> None:
        self.flags, self.filter, self.way, self.ends, self.beside = flags, filter, way, ends, beside
        self._program = ffi.from_buffer(filter)
        self.how = ffi.new("struct lw_runner *")
        self.how.flags = flags
        self.how.filter, self.how.filter_count = self._program, len(filter) // 8  # struct sock_filter
        self.paths = ffi.new("struct lw_way[5]")  # LW_WAYS
        self._layers = []
        for path, each in zip(self.paths, (Way(way, ends), *beside), strict=False):
            path.steps, path.count = each.table.rows
            path.ends = [each.table.address(end) for end in each.ends]
            if each.layers:
                self._layers.append(ffi.new("uint8_t[]", list(each.layers)))
                path.layers = self._layers[-1]
        self.born = ffi.new("struct lw_born *")
        self.paths[0].once = once
        self._beginning: Any = None
        self.snapshot: Snapshot | None = None
        self.begun = Born(0, 0, self.paths[0].count, 0, hurried=True, begun=True)
        self.sound = [Born(0, 0, self.paths[0].count, 0, hurried) for hurried in (False, True)]

    def copy_at_once(self, pages: Sequence[tuple[int, int]]) -> None:
        """
        Address and bytes of memory that each job will write: it is copied for it in one go (Linux 5.14).
        """
        self._pages = ffi.new("struct lw_range[]", list(pages))
        for path in (self.paths[0], self.paths[3]):  # LW_FIRST, LW_COPY
            path.pages, path.page_count = self._pages, len(pages)

    def copy_by_clone(self, pages: Sequence[tuple[int, int]]) -> None:
        """
        Address and bytes of memory that each job will write for which somebody waits: from the first such job on a
        keeper has it copied by the call that makes a runner, if the kernel lets it pin so many pages.
        """
        self._hot = ffi.new("struct lw_range[]", list(pages))
        self.paths[0].hot, self.paths[0].hot_count = self._hot, len(pages)

    def taken(self, snapshot: Snapshot) -> None:
        """
        *snapshot* is what the zygote's memory is from now on. What a keeper has only read of it by then, its first
        runner for which somebody waits needs no entries of.
        """
        self.snapshot = snapshot
        self.paths[0].taken = snapshot.taken

    @property
    def beginning(self) -> Any:
        """
        A struct lw_beginning *, of jobs that begin in C; None where none does.
        """
        return self._beginning

    def begin_early(self, birth: int, ready: bytes, renew: Callable[[], object]) -> None:
        """
        Have a runner for which somebody waits do in C what comes between its last lock and its job.

        The job's pipes are laid by then: see `job.Pipes`.

        Args:
            birth: the channel by which it says that it is ready.
            ready: that message.
            renew: called before: what no two runners may share. A function of C's, since bytecode costs pages. Where it
                raises, nothing is begun.
        """
        self._ready, self._renew = ffi.from_buffer(ready), renew
        self._beginning = ffi.new("struct lw_beginning *", {
            "ready": self._ready, "size": len(ready), "birth": birth, "renew": ffi.cast("void *", id(renew))})
        self.paths[0].beginning = self._beginning


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
    ret = lib.lw_keep(channel, kept.how, kept.paths, kept.born)
    if 1 == ret:
        born = kept.born
        if born.begun:
            return kept.begun
        if born.sound and not born.beside:
            return kept.sound[int(born.hurried)]
        return Born(-born.join_error, -born.affinity_error, born.done, born.result, bool(born.hurried), born.beside)
    if ret < 0:
        raise KernelRefusal("recvmsg", "the keeper's control channel", -ret)
    return None
