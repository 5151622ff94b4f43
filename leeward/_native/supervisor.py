"""
The native thread that answers refused system calls.

Runs in:   the daemon. `src/supervisor.c` has the theory of operation.
Source:    seccomp_unotify(2)
"""

from __future__ import annotations

import errno
from typing import Any

from leeward._native._shim import ffi, lib
from leeward.dataclass import dataclass
from leeward.errors import Bug, KernelRefusal

#: The number under which a job's refusals are counted when it has tried too many different calls.
OTHER_NR = int(lib.LW_OTHER_NR)


@dataclass(frozen=True, slots=True)
class Tally:
    """
    How often one job was refused one call.

    Attributes:
        count: since the job's start.
        unreported: of these, not handed over by `Thread.drain` before.
        arch: AUDIT_ARCH_*.
        nr: the call's number there, or OTHER_NR.
        pid: who tried it last, as the daemon sees it; 0 if it can't.
    """

    job: int
    count: int
    unreported: int
    arch: int
    nr: int
    pid: int


class Thread:
    """
    The running thread. Not for two Python threads at once: the buffer is shared.

    Raises:
        KernelRefusal: no thread, no epoll, no eventfd, or no user notification.
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
        """
        An eventfd that is readable when `drain` has something; ours.
        """
        return int(lib.lw_supervisor_eventfd(self.handle))

    def add(self, fd: int, job: int, *, quiet: bool = False) -> int:
        """
        Answer for the listener *fd*, which is the thread's from now on; return its slot. If *quiet*, what is refused
        makes `fileno` readable only from `end_check` on.

        Raises:
            KernelRefusal: and then *fd* is still the caller's.
        """
        slot = ffi.new("uint32_t *")
        failed = lib.lw_supervisor_add(self.handle, fd, job, quiet, slot)
        if failed:
            raise KernelRefusal("epoll_ctl", f"EPOLL_CTL_ADD, listener {fd}", -failed,
                                "as many jobs as the supervisor can have" if -failed == errno.EUSERS else "")
        return int(slot[0])

    def end_check(self, slot: int) -> None:
        """
        Forget what was refused so far in *slot*, and tell of what follows.
        """
        if lib.lw_supervisor_end_check(self.handle, slot):
            raise Bug("the supervisor has no such slot")

    def counts(self, slot: int) -> list[Tally]:
        """
        What the job in *slot* was refused so far.
        """
        return self._tallies(lib.lw_supervisor_counts(self.handle, slot, self._rows, self._count))

    def total(self, slot: int) -> int:
        """
        The sum of all counts of the job in *slot*.
        """
        if lib.lw_supervisor_total(self.handle, slot, self._total):
            raise Bug("the supervisor has no such slot")
        return int(self._total[0])

    def grant(self, slot: int, limit: int, files: int) -> None:
        """
        Grant the job in *slot* shared mappings without a file, of *limit* bytes altogether, and memory files in the
        folder *files*, a descriptor that must be open until the slot is removed.
        """
        failed = lib.lw_supervisor_grant(self.handle, slot, limit, files)
        if failed:
            raise KernelRefusal("malloc", "what a job is charged with", -failed)

    def set_watches(self, most: int) -> None:
        """
        Grant *most* watches of epoll to all jobs together that are granted anything. Each may have as many as it
        leaves.
        """
        lib.lw_supervisor_set_watches(self.handle, most)

    def share(self, slot: int, of: int) -> None:
        """
        Grant the job in *slot* what that in *of* is granted, from the same limit.
        """
        if lib.lw_supervisor_share(self.handle, slot, of):
            raise Bug("the supervisor has no such slot")

    def charged(self, slot: int) -> int:
        """
        Bytes of such mappings that the job in *slot* is charged with, and those with whom it shares its limit.
        """
        if lib.lw_supervisor_charged(self.handle, slot, self._total):
            raise Bug("the supervisor has no such slot")
        return int(self._total[0])

    def remove(self, slot: int) -> list[Tally]:
        """
        Close the listener in *slot*; return the last word on its job.
        """
        return self._tallies(lib.lw_supervisor_remove(self.handle, slot, self._rows, self._count))

    def drain(self) -> list[Tally]:
        """
        What was refused since the last time. Call again while `fileno` is readable.
        """
        return self._tallies(lib.lw_supervisor_drain(self.handle, self._rows, self._count))

    def stop(self) -> None:
        """
        End the thread and close its listeners. Nothing else may be called after.
        """
        lib.lw_supervisor_stop(self.handle)

    def _tallies(self, failed: int) -> list[Tally]:
        if failed:
            raise Bug("the supervisor has no such slot")
        return [Tally(row.job, row.count, row.unreported, row.arch, row.nr, row.pid)
                for row in self._rows[0:self._count[0]]]
