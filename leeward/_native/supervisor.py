"""The native thread that answers refused system calls. `src/supervisor.c` has the theory of operation."""

from __future__ import annotations

import errno
from typing import Any

from leeward._native._shim import ffi, lib
from leeward.base.dataclass import dataclass
from leeward.errors import Bug, KernelRefusal

#: The number under which a job's refusals are counted when it has tried too many different calls.
OTHER_NR = int(lib.LW_OTHER_NR)


#: inotify's descriptors that a sandbox may have, and its watches.
INSTANCES, WATCHES = int(lib.LW_WATCH_INSTANCES), int(lib.LW_WATCH_WATCHES)


def can_bound_watches(path: str) -> bool:
    """Whether a process can write to *path*, a file of /proc/sys/user, in a new user namespace. Makes one, for a moment."""
    return bool(lib.lw_can_bound_watches(path.encode()))


@dataclass(frozen=True, slots=True)
class Tally:
    job: int
    count: int       # refusals since the job's start
    unreported: int  # those of them that `Thread.drain` hasn't returned before
    arch: int        # AUDIT_ARCH_*, the architecture of the call
    nr: int          # the call's number on that architecture, or OTHER_NR
    pid: int         # the process that tried it last, in the daemon's pid namespace; 0 if it isn't visible there


class Thread:
    """
    The running supervisor thread. Two Python threads must not call it at once, because they share its buffer.
    KernelRefusal if it, its epoll or its eventfd can't be made, or the kernel has no user notification.
    """

    def __init__(self) -> None:
        handle = ffi.new("struct lw_supervisor **")
        failed = lib.lw_supervisor_start(handle)
        if failed:
            raise KernelRefusal("pthread_create", "the supervisor", -failed)
        self.handle: Any = handle[0]
        self._rows = ffi.new("struct lw_denied[]", lib.LW_SUPERVISOR_MOST)
        self._count = ffi.new("uint32_t *")
        self._total = ffi.new("uint64_t *")

    def fileno(self) -> int:
        """An eventfd that is readable when `drain` has something to return. This object keeps it."""
        return int(lib.lw_supervisor_eventfd(self.handle))

    def add(self, fd: int, job: int, *, quiet: bool = False, of: int = -1) -> int:
        """
        Answer the calls of the listener *fd*, which the thread owns from now on unless KernelRefusal is raised. Returns
        the listener's slot. If *quiet*, refusals make `fileno` readable only after `end_check`. *of*: as of `share`.
        """
        slot = ffi.new("uint32_t *")
        failed = lib.lw_supervisor_add(self.handle, fd, job, quiet, of, slot)
        if failed:
            raise KernelRefusal("epoll_ctl", f"EPOLL_CTL_ADD, listener {fd}", -failed,
                                "as many jobs as the supervisor can have" if -failed == errno.EUSERS else "")
        return int(slot[0])

    def end_check(self, slot: int) -> None:
        """
        End the check in which the runner in *slot* tries forbidden calls: forget refusals so far, and report later
        ones.
        """
        _check(lib.lw_supervisor_end_check(self.handle, slot))

    def counts(self, slot: int) -> list[Tally]:
        return self._tallies(lib.lw_supervisor_counts(self.handle, slot, self._rows, self._count))

    def total(self, slot: int) -> int:
        _check(lib.lw_supervisor_total(self.handle, slot, self._total))
        return int(self._total[0])

    def grant(self, slot: int, limit: int, files: int) -> None:
        """
        Grant the job in *slot* shared mappings without a file, of *limit* bytes altogether; memory files in the folder
        *files*, a descriptor that must be open until the slot is removed; and watches of epoll. 0 and -1 grant watches
        only.
        """
        failed = lib.lw_supervisor_grant(self.handle, slot, limit, files)
        if failed:
            raise KernelRefusal("malloc", "what a job is charged with", -failed)

    def set_watches(self, most: int) -> None:
        """Grant *most* watches of epoll to all jobs of `grant` together. Each may have as many as it leaves to the others."""
        lib.lw_supervisor_set_watches(self.handle, most)

    def set_watchers(self, most: int, queue: int) -> None:
        """
        Let *most* sandboxes at once have inotify, each descriptor charged with *queue* bytes if `grant` bounds memory.
        Call it once, before `add`.
        """
        failed = lib.lw_supervisor_set_watchers(self.handle, most, queue)
        if failed:
            raise KernelRefusal("pthread_create", "the supervisor's watches", -failed)

    def share(self, slot: int, of: int) -> None:
        """Grant the job in *slot* what the job in the slot *of* was granted; the two share one limit."""
        _check(lib.lw_supervisor_share(self.handle, slot, of))

    def charged(self, slot: int) -> int:
        """Bytes of granted memory that are charged to the job in *slot* and to the jobs that share its limit."""
        _check(lib.lw_supervisor_charged(self.handle, slot, self._total))
        return int(self._total[0])

    def remove(self, slot: int) -> list[Tally]:
        """Close the listener in *slot*. Returns the final counts of its job."""
        return self._tallies(lib.lw_supervisor_remove(self.handle, slot, self._rows, self._count))

    def drain(self) -> list[Tally]:
        """The refusals since the last call. Call again while `fileno` is readable."""
        return self._tallies(lib.lw_supervisor_drain(self.handle, self._rows, self._count))

    def stop(self) -> None:
        """End the thread and close its listeners. Nothing else may be called afterwards."""
        lib.lw_supervisor_stop(self.handle)

    def _tallies(self, failed: int) -> list[Tally]:
        _check(failed)
        return [Tally(row.job, row.count, row.unreported, row.arch, row.nr, row.pid)
                for row in self._rows[0:self._count[0]]]


def _check(failed: int) -> None:
    if failed:
        raise Bug("the supervisor has no such slot")
