"""
The supervisor: refuses, counts and reports the system calls that no row allows.

Runs in:   the daemon; a native thread answers, which never waits for Python.
Stands if: Python is busy, stopped at a breakpoint, out of descriptors or of memory.
Leaves:    every decision. It says EACCES to all: who is asked has been refused.
Source:    seccomp_unotify(2)

Parties: each job's tasks, which wait in the kernel for an answer; the thread, which waits
for all listeners; the daemon's loop, which waits for `fileno` and drains. A listener
comes by SCM_RIGHTS before its job starts and goes when its last task is dead. The
names in counts and records are the kernel's.
"""

from __future__ import annotations

import os
from collections import Counter, deque

from leeward._native.supervisor import OTHER_NR, Tally, Thread
from leeward.dataclass import dataclass
from leeward.errors import Bug
from leeward.isolation.seccomp.syscalls import AUDIT_ARCH, name_of

#: Records of jobs that have ended, not drained yet. A daemon that drains at all has a few.
DEPARTED = 4096

_ARCHES = {audit: arch for arch, audit in AUDIT_ARCH.items()}


@dataclass(frozen=True, slots=True)
class Denied:
    """
    Refusals of one call to one job since the last record of the two.

    Attributes:
        job: the number given to `Supervisor.add`.
        syscall: its name, "syscall_NNN" if it has none, "other" past 256 different ones.
        arch: as os.uname().machine has it.
        pid: of the last task that tried, as the daemon sees it; 0 if it can't.
        count: how often.
    """

    job: int
    syscall: str
    arch: str
    pid: int
    count: int


class Supervisor:
    """
    Answers for any number of listeners. Its methods are for one Python thread.

    Raises:
        KernelRefusal: the thread can't start.
    """

    def __init__(self) -> None:
        self._thread = Thread()
        self._slots: dict[int, int] = {}
        self._departed: deque[Denied] = deque(maxlen=DEPARTED)
        self.lost = 0  # records that nobody drained in time; the counts of a job's result hold all

    def add(self, listener_fd: int, job: int) -> None:
        """
        Answer for *job* from now on. Takes the descriptor, also when it fails.

        Raises:
            KernelRefusal: the job must not start: its refused calls would wait for ever.
        """
        if job in self._slots:
            os.close(listener_fd)
            raise Bug(f"job {job} has a listener already")
        try:
            self._slots[job] = self._thread.add(listener_fd, job)
        except BaseException:
            os.close(listener_fd)
            raise

    def counts(self, job: int) -> dict[str, int]:
        """
        What *job* was refused so far, by name.
        """
        return _by_name(self._thread.counts(self._slots[job]))

    def total(self, job: int) -> int:
        """
        How many calls *job* was refused so far, of all names.
        """
        return self._thread.total(self._slots[job])

    def place(self, job: int) -> tuple[object, int]:
        """
        Where the shim finds the counts of *job*: its supervisor, and the slot there.
        """
        return self._thread.handle, self._slots[job]

    def remove(self, job: int) -> dict[str, int]:
        """
        Close the job's listener and return the final counts; {} if it has none.

        A task that is left gets ENOSYS for what it would have been refused.
        """
        slot = self._slots.pop(job, None)
        if slot is None:
            return {}
        tallies = self._thread.remove(slot)
        for denied in map(_denied, (tally for tally in tallies if tally.unreported)):
            self.lost += len(self._departed) == DEPARTED
            self._departed.append(denied)
        return _by_name(tallies)

    def fileno(self) -> int:
        """
        An eventfd that is readable when `drain` has something. Ours; not for closing.
        """
        return self._thread.fileno()

    def drain(self) -> list[Denied]:
        """
        What was refused since the last time, one record for each job and call.

        At most 257 of them from running jobs; `fileno` stays readable if there are more.
        """
        records = [*self._departed, *map(_denied, self._thread.drain())]
        self._departed.clear()
        return records

    def close(self) -> None:
        """
        End the thread, close all listeners. Once.
        """
        self._thread.stop()
        self._slots.clear()


def _denied(tally: Tally) -> Denied:
    return Denied(tally.job, _name(tally), _ARCHES.get(tally.arch, f"{tally.arch:#x}"), tally.pid, tally.unreported)


def _by_name(tallies: list[Tally]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts[_name(tally)] += tally.count
    return dict(counts)


def _name(tally: Tally) -> str:
    return "other" if OTHER_NR == tally.nr else name_of(tally.nr, _ARCHES.get(tally.arch, ""))
