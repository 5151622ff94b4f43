"""The loop of a keeper, in C. The keeper calls it once; in each job, a clone of the keeper, the call returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward._native.snapshot import MemorySnapshot
from leeward._native.spawn import Clone
from leeward._native.steps import Cell, Table, refusal
from leeward.base.dataclass import dataclass
from leeward.errors import KernelRefusal


@dataclass(frozen=True, slots=True)
class Born:
    join_error: int        # 0, or the errno with which it could not join its cgroups; then no step was taken
    affinity_error: int    # 0, or the errno with which its one processor could not be set
    done: int              # how many steps had an allowed result
    result: int            # the result of the next step
    hurried: bool = False  # a request waits for this runner
    beside: int = 0        # 0 for a runner's first process; else the control.Kind of the process
    again: bool = False    # a runner in kept namespaces that had one before
    begun: bool = False    # it has sent the message that it is ready, and read its job's frame


@dataclass(frozen=True, slots=True)
class Way:
    """The steps that every process of one kind takes up to its last lock."""

    table: Table
    ends: Sequence[Cell]        # for the descriptors that come with the order, as keeper.h lists them (LW_ENDS)
    layers: Sequence[int] = ()  # for each step, the number of its layer in control.LAYERS


@dataclass(frozen=True, slots=True)
class Keeping:
    """
    How runners follow each other in kept namespaces. *way*: the steps of all but the first; *once* as for Kept; *rules*: the
    steps that leave the ruleset for them; *folders*: where they write, all of one tmpfs, new with mode 1777, the first 755.
    """

    way: Way
    once: int
    rules: Table
    folders: Sequence[str]


class Kept:
    """
    What a keeper needs to make runners, laid out for C in the zygote, since objects that are made in a keeper cost it
    pages.

    Args:
        flags: namespaces of init and job.
        filter: BPF of the inits.
        way: the steps that each job takes before anything else.
        ends: the cells of *way* for the job's ends of job, reply, stdout, stderr and birth.
        beside: the ways of further processes of a sandbox, in the order of control.Kind, and of the helper that makes
            them. Empty if there are none.
        once: the number of the step that only the keeper's first job takes; 0 if there is none.
        keeping: how runners follow each other in one's namespaces; None: none does.
    """

    def __init__(self, flags: Clone | int, *, filter: bytes, way: Table, ends: Sequence[Cell],
                 beside: Sequence[Way] = (), once: int = 0, keeping: Keeping | None = None) -> None:
        self.flags, self.filter, self.way, self.ends, self.beside = flags, filter, way, ends, beside
        self._program = ffi.from_buffer(filter)
        self.how = ffi.new("struct lw_runner *")
        self.how.flags = flags
        self.how.filter, self.how.filter_count = self._program, len(filter) // 8  # struct sock_filter
        self.paths = ffi.new("struct lw_way[8]")  # LW_WAYS
        self._layers = []
        for path, each in zip(self.paths, (Way(way, ends), *beside), strict=False):
            path.steps, path.count = each.table.rows
            path.ends = [each.table.address(end) for end in each.ends]
            if each.layers:
                self._layers.append(ffi.new("uint8_t[]", list(each.layers)))
                path.layers = self._layers[-1]
        self.born = ffi.new("struct lw_born *")
        self.paths[0].once = once
        self.keeping = keeping
        if keeping is not None:
            self._names = [ffi.new("char[]", folder.encode()) for folder in keeping.folders]
            self._folders = ffi.new("char *[]", self._names)
            self.how.folders, self.how.folder_count = self._folders, len(self._names)
            following, rules = self.paths[6], self.paths[7]  # LW_NEXT, LW_RULES
            following.steps, following.count = keeping.way.table.rows
            following.ends = [keeping.way.table.address(end) for end in keeping.way.ends]
            following.once = keeping.once
            rules.steps, rules.count = keeping.rules.rows
        self.beginning: Any = None  # a struct lw_beginning * for jobs that begin in C
        self.snapshot: MemorySnapshot | None = None
        self.begun, self.followed = (Born(0, 0, self.paths[0].count, 0, hurried=True, again=again, begun=True)
                                     for again in (False, True))
        self.sound = [Born(0, 0, self.paths[0].count, 0, hurried) for hurried in (False, True)]

    def copy_at_once(self, pages: Sequence[tuple[int, int]]) -> None:
        """Have *pages* (address and bytes), which each job will write, copied for it in one go (Linux 5.14)."""
        self._pages = ffi.new("struct lw_range[]", list(pages))
        for path in (self.paths[0], self.paths[3], self.paths[6]):  # LW_FIRST, LW_COPY, LW_NEXT
            path.pages, path.page_count = self._pages, len(pages)

    def copy_by_clone(self, pages: Sequence[tuple[int, int]]) -> None:
        """
        Have *pages* (address and bytes) copied by the call that makes a runner, from a keeper's first job on for which
        a request waits, if the kernel lets the keeper pin so many pages.
        """
        self._hot = ffi.new("struct lw_range[]", list(pages))
        self.paths[0].hot, self.paths[0].hot_count = self._hot, len(pages)

    def taken(self, snapshot: MemorySnapshot) -> None:
        """
        Record that *snapshot* has replaced the zygote's memory. From a keeper's first runner on for which a request
        waits, runners get no page table entries for pages that the keeper has only read.
        """
        self.snapshot = snapshot
        self.paths[0].taken = snapshot.taken

    def begin_early(self, birth: int, ready: bytes, renew: Callable[[], object]) -> None:
        """
        Have runners for which a request waits take the steps between the last lock and the job in C. The job's pipes
        must have been set by then: see `job_pipes.Pipes`.

        Args:
            birth: the channel by which a runner reports that it is ready.
            ready: the message that does so.
            renew: called before the message, to replace what no two runners may share. A function written in C,
                since bytecode costs pages. If it raises, the runner isn't begun in C.
        """
        self._ready, self._renew = ffi.from_buffer(ready), renew
        self.beginning = ffi.new("struct lw_beginning *", {
            "ready": self._ready, "size": len(ready), "birth": birth, "renew": ffi.cast("void *", id(renew))})
        self.paths[0].beginning = self.paths[6].beginning = self.beginning


class Settling:
    """
    What a keeper does in C before it serves, laid out in the zygote: *table*, whose steps from *aside* to before *last* are
    taken in a pid namespace of their own, with its end of the control channel in the cell *channel*. They leave the ruleset
    of the inits in *ruleset*, if there is one.
    """

    def __init__(self, table: Table, aside: int, last: int, channel: Cell, ruleset: Cell | None, kept: Kept) -> None:
        self.table, self._kept = table, kept
        steps, count = table.rows
        self.how = ffi.new("struct lw_settling *", {"steps": steps, "aside": aside, "last": last, "count": count})
        self.how.channel = table.address(channel)
        if ruleset is not None:
            self.how.ruleset = table.address(ruleset)

    def serve(self, channel: int, flags: Clone | int) -> Born | KernelRefusal | None:
        """
        In the zygote: make keepers in new namespaces for the daemon at *channel*, until it is gone: None. In a keeper and in
        a job as `keep`; in a keeper that couldn't settle the KernelRefusal. Raises KernelRefusal if *channel* broke.
        Linux 5.7.
        """
        kept = self._kept
        if kept.snapshot is not None:
            self.how.map = ffi.addressof(kept.snapshot.taken, "map")
        ret = lib.lw_make_keepers(channel, flags, self.how, kept.how, kept.paths, kept.born)
        if ret != lib.LW_UNSETTLED:
            return _kept_as(ret, kept)
        done, result = int(self.how.done), int(self.how.result)
        return refusal(self.table.steps[done], result) if done < len(self.table.steps) else KernelRefusal(
            "write", "tasks", -result)

    @property
    def channel(self) -> int:
        """In a keeper: its end of its control channel."""
        return int(self.how.channel[0])


def keep(channel: int, ruleset: int, kept: Kept) -> Born | None:
    """
    Make runners for the daemon until it is gone (None), under a Landlock *ruleset* for the inits, or -1. In a job: how
    far it has come. KernelRefusal if *channel* broke, or brought a message that the daemon never sends (EPROTO).

    CPython's functions around a fork (PyOS_BeforeFork, PyOS_AfterFork_Child) aren't called. They handle threads that
    the child lacks, and the locks that such threads may hold; the keeper has only one thread, which is outside of the
    interpreter while it is in this call. `inside.reseeding` runs the hooks of os.register_at_fork. docs/decisions/0010
    """
    kept.how.ruleset = ruleset
    return _kept_as(lib.lw_keep(channel, kept.how, kept.paths, kept.born), kept)


def _kept_as(ret: int, kept: Kept) -> Born | None:
    if ret == 1:
        born = kept.born
        if born.begun:
            return kept.begun if born.begun == 1 else kept.followed
        if born.sound and not born.beside and not born.again:
            return kept.sound[int(born.hurried)]
        return Born(-born.join_error, -born.affinity_error, born.done, born.result, bool(born.hurried), born.beside,
                    bool(born.again))
    if ret < 0:
        raise KernelRefusal("recvmsg", "the keeper's control channel", -ret)
    return None
