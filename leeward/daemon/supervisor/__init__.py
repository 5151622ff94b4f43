"""
The supervisor: refuses, counts and reports the system calls that no row allows, and grants memory that it charges.

Runs in: the daemon; a native thread answers, which never waits for Python. So it stands if Python is busy, stopped at a
breakpoint, out of descriptors or of memory.

The filter makes every decision but two: it passes only calls that must be refused, which get EACCES. The exceptions are
memory that no resident set shows: where no cgroup counts it, the supervisor grants and charges it; and files to watch by
inotify, which it judges and watches for the job (docs/decisions/0174). seccomp_unotify(2)

Parties: each job's tasks, which wait in the kernel for an answer; the thread, which waits for all listeners; the
daemon's loop, which waits for `fileno` and drains. A listener arrives by SCM_RIGHTS before its job starts, and is
closed when its last task is dead. The names in counts and records are the kernel's.
"""

from __future__ import annotations

import os
from collections import Counter, deque

from leeward._native.supervisor import OTHER_NR, Tally, Thread
from leeward.base.dataclass import dataclass
from leeward.errors import Bug
from leeward.isolation.seccomp.syscalls import AUDIT_ARCH, name_of
from leeward.isolation.watching import NOBODY, Watchers

#: The most records of ended jobs that wait for `drain`. A daemon that drains in time has only a few.
DEPARTED = 4096

_ARCHES = {audit: arch for arch, audit in AUDIT_ARCH.items()}


@dataclass(frozen=True, slots=True)
class Denied:
    """
    The refusals of one system call to one job since their last record. *syscall*: "syscall_NNN" if it has no name,
    "other" after 256 different ones. *arch*: as os.uname().machine. *pid*: the last task that made it, in the daemon's
    pid namespace; 0 if it isn't visible there.
    """

    job: int
    syscall: str
    arch: str
    pid: int
    count: int


class Supervisor:
    """
    Answers for any number of listeners. Only one Python thread may call its methods. *watches*: epoll's watches that
    all jobs together may have, if the filter asks for each (isolation/rlimits.py); else 0. *watchers*: who may use
    inotify. Jobs of `add` must be in user namespaces that the steps of isolation/watching.py have bounded.
    """

    def __init__(self, watches: int = 0, watchers: Watchers = NOBODY) -> None:
        self._thread = Thread()
        if watches:
            self._thread.set_watches(watches)
        if watchers.most:
            self._thread.set_watchers(*watchers)
        self._slots: dict[int, int] = {}
        self._departed: deque[Denied] = deque(maxlen=DEPARTED)
        self.lost = 0  # records that nobody drained in time; the counts in a job's result are complete nevertheless

    def add(self, listener: int, job: int, *, checking: bool = False, of: int = 0) -> None:
        """
        Answer for *job* from now on. Takes ownership of the descriptor, also on failure: KernelRefusal, and the job
        must not start, since its refused calls would block for ever. *checking*: until `end_check` they don't wake the
        daemon. *of*: another job, whose grants it shares from its first call on; `share` may come after that.
        """
        if job in self._slots:
            os.close(listener)
            raise Bug(f"job {job} has a listener already")
        try:
            slot = self._thread.add(listener, job, quiet=checking, of=self._slots.get(of, -1))
        except BaseException:
            os.close(listener)
            raise
        self._slots[job] = slot

    def end_check(self, job: int) -> None:
        """End the self-check of *job*'s process. Calls that were refused during the check don't count as the job's."""
        self._thread.end_check(self._slots[job])

    def counts(self, job: int) -> dict[str, int]:
        """The refused calls of *job* so far, by name."""
        return _by_name(self._thread.counts(self._slots[job]))

    def total(self, job: int) -> int:
        """The number of refused calls of *job* so far."""
        return self._thread.total(self._slots[job])

    def grant(self, job: int, limit: int, files: int) -> None:
        """
        Grant *job* shared mappings without a file, and memory files on its tmpfs *files*, where no cgroup counts such
        memory: *limit* bytes, each mapping charged with its length until the listener is removed.
        """
        self._thread.grant(self._slots[job], limit, files)

    def share(self, job: int, of: int) -> None:
        """Grant *job* the same as the job *of*, within one common limit."""
        if of in self._slots:
            self._thread.share(self._slots[job], self._slots[of])

    def charged(self, job: int) -> int:
        """The bytes charged to *job* and to all jobs that share its limit."""
        return self._thread.charged(self._slots[job])

    def place(self, job: int) -> tuple[object, int]:
        """The location of *job*'s counts for C code: the native supervisor, and the slot in it."""
        return self._thread.handle, self._slots[job]

    def remove(self, job: int) -> dict[str, int]:
        """Close the job's listener; returns the final counts, {} without one. A task that still runs gets ENOSYS then."""
        slot = self._slots.pop(job, None)
        if slot is None:
            return {}
        tallies = self._thread.remove(slot)
        for denied in map(_denied, (tally for tally in tallies if tally.unreported)):
            self.lost += len(self._departed) == DEPARTED
            self._departed.append(denied)
        return _by_name(tallies)

    def fileno(self) -> int:
        """An eventfd that is readable when `drain` has records. The supervisor owns it."""
        return self._thread.fileno()

    def drain(self) -> list[Denied]:
        """The refused calls since the last `drain`, by job and call, at most 257; `fileno` stays readable for more."""
        records = [*self._departed, *map(_denied, self._thread.drain())]
        self._departed.clear()
        return records

    def close(self) -> None:
        """End the thread and close all listeners. Call it once."""
        self._thread.stop()
        self._slots.clear()


def _denied(tally: Tally) -> Denied:
    return Denied(tally.job, _name(tally), _ARCHES.get(tally.arch, f"{tally.arch:#x}"), tally.pid, tally.unreported)


def _by_name(tallies: list[Tally]) -> dict[str, int]:
    if not tallies:
        return {}
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts[_name(tally)] += tally.count
    return dict(counts)


def _name(tally: Tally) -> str:
    return "other" if tally.nr == OTHER_NR else name_of(tally.nr, _ARCHES.get(tally.arch, ""))
