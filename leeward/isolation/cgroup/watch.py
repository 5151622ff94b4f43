"""
Measures the memory and processor time of a tree of processes from outside, where no cgroup controller counts them.

Needs:     CONFIG_PROC_CHILDREN. Only files that every user may read are used: a job isn't dumpable, so an ordinary user
           can't read its smaps, pagemap or maps.
Source:    proc_pid_stat(5), proc_pid_status(5), proc_pid_task_tid_children(5)

The kernel reports the resident pages of a process, but not which of them it shares with the process that it was forked
from: the sum would count 100 MB that a job has loaded again for each process that it forks.

It also reports the number of page faults. A page that a child shares with its parent becomes the child's alone if the
child writes to it, which is a fault of the child, or if the parent writes to it or frees it, after which the parent has
more faults or fewer resident pages. So a process is charged the smaller of

    its resident pages, and
    its own faults since its fork, plus its parent's wear since then.

The wear of a process is the sum of the rises of (faults less resident pages), which never falls; a fault that brings a
fresh page doesn't change it. The charge is never less than what the process holds alone, and never more than its
resident pages. One fault gives one page, because jobs run without huge pages.

The two numbers are in two files, and between the two reads the process can touch 30 MB, which is no wear, if the daemon
waits for a processor. So the faults are read before and after the resident pages, again if they differ, and the wear
rises only by what both prove. What one look can't tell, a later one adds.

The parent's wear at the fork is that of the look before the fork, so there must be a look before the job starts. If the
parent has gone, or wasn't seen then, the process is charged for all pages that it may have inherited from the job's
other processes.

`Looks` takes the look by C where it can (`_native/src/fast_path_watch.c`). If nobody has run since the look before,
memory is what it was. Each process's clock and state tell that; its clock alone lacks up to a tick while it runs.

Files on the job's file system are charged once, by the size that the file system reports, whichever process maps them.

Two things aren't seen: buffers of pipes and sockets, which the limits on descriptors and processes bound; and pages
that a process faulted into memory which it shares with another one (vfork), if the first has ended, and the second
freed as many pages between the same two looks. Shared mappings without a file are charged with their length by the
supervisor, and memory files are files on the job's file system. Seccomp refuses jobs every other way to hold memory
that is in no resident set.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import time
from collections.abc import Iterable, Iterator

from leeward._native.loop import ProcessTree
from leeward.base.dataclass import dataclass, field
from leeward.isolation.cgroup import reserve

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: The kind of clock in a clock id that is made of a pid: the time that the scheduler gave to all of the process's
#: threads. linux/posix-timers_types.h
_CPUCLOCK_SCHED = 2

#: Times that the memory of a process is read, at most, while it touches pages; and times that its children are listed,
#: at most, while its threads end. Children of a thread that ended would be missed by a single try, so a job could hide
#: them by starting and ending threads.
_TRIES = 3

#: Bytes of one read behind which there may be more: a page, less the longest row of the files that are read.
_PIECE = 4096 - 1024

#: The errors of a process that has gone.
GONE = (FileNotFoundError, ProcessLookupError)

#: Identifies a process: its pid, and its start time in clock ticks, which tells it from a later process of that pid.
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ProcessSample:
    key: Key
    parent: Key | None    # None for a child of the sandbox's init, or of its keeper
    resident: int         # bytes of anonymous memory, including swap
    tables: int           # bytes of its page tables
    shared: int           # bytes of files in memory that it maps
    faults: int           # of all its threads, since it was forked and until after `resident` was read
    time: float           # its own processor seconds, user and system
    waited: float         # processor seconds of children that it has waited for, in whole clock ticks
    tasks: int            # its threads
    late: int = 0         # how many of `faults` may have happened after `resident` was read
    beside: bool = False  # a child of the keeper, which was started beside the sandbox's first process


@dataclass(slots=True)
class _Record:
    """What is remembered of a process from look to look. All in bytes."""

    parent: Key | None
    worn: int | None  # the parent's wear at the fork or before; None if it isn't known
    from_job: int     # the most that it can have inherited from the job's other processes at its fork
    balance: int      # faults less resident pages, as far as the looks so far could tell
    wear: int = 0     # the rises of `balance` so far

    def wore(self, faults: int, late: int, resident: int) -> None:
        """Add what a look has seen of the process; its arguments are a ProcessSample's."""
        most = faults * PAGE - resident
        least = most - late * PAGE
        self.wear += max(0, least - self.balance)
        self.balance = min(max(self.balance, least), most)


@dataclass(slots=True)
class Account:
    """What a job has used, by the looks so far."""

    memory: int = 0       # bytes at the last look
    memory_peak: int = 0  # the most of all looks
    time: float = 0.0     # processor seconds; the number never falls
    tasks: int = 0        # the largest number of threads at any look
    others: float = 0.0   # of `time`, what processes used that were gone at the last look
    _times: dict[Key, float] = field(default_factory=dict)
    _gone: float = 0.0
    _records: dict[Key, _Record] = field(default_factory=dict)

    def note(self, processes: Iterable[ProcessSample], *, files: int | None, spent: float = 0.0,
             hidden: int = 0) -> None:
        """
        Add the result of one look.

        Args:
            processes: parents before children, and the job before orphans.
            files: bytes in files on the job's file system. If None, each process is charged for the files in memory
                that it maps, the zygote's memory (crossing/snapshot.py) among them.
            spent: processor seconds of processes that are gone, as the init counts them.
            hidden: bytes that neither the processes nor the files show.
        """
        alive = {process.key: process for process in processes}
        before, self._records = self._records, {}
        worn = {key: record.wear for key, record in before.items()}
        for key, process in alive.items():
            self._records[key] = before.get(key) or self._first_look(process, alive, worn, is_first=not before)
        for key, record in self._records.items():
            record.wore(alive[key].faults, alive[key].late, alive[key].resident)
        charged = sum(self._charge(process, alive) + process.tables for process in alive.values())
        self.memory = charged + hidden + (files if files is not None else sum(each.shared for each in alive.values()))
        self.memory_peak = max(self.memory_peak, self.memory)
        self._note_time(alive, spent)
        self.tasks = max(self.tasks, sum(process.tasks for process in alive.values()))

    def wore(self, key: Key, faults: int, late: int, resident: int) -> None:
        """Add what C has seen of the only process, which may fork before the next whole look."""
        if key in self._records:
            self._records[key].wore(faults, late, resident)

    def _note_time(self, alive: dict[Key, ProcessSample], spent: float) -> None:
        # There are two figures for processes that are gone. The sum of what was seen of them lacks the time after the
        # last look. What was reported to the processes that waited for them lacks a fraction of a tick for each.
        # Neither is too high, so the higher one is taken.
        self._gone += sum(spent for key, spent in self._times.items() if key not in alive)
        self._times = {key: process.time for key, process in alive.items()}
        waited = spent + sum(process.waited for process in alive.values())
        self.others = max(self._gone, waited)
        self.time = max(self.time, sum(self._times.values()) + self.others)

    def end(self, spent: float) -> None:
        """
        Note that all processes have ended. *spent*: the seconds of those that the init has reaped, exact to the
        microsecond.
        """
        self.time = max(self.time, spent)

    def _first_look(self, process: ProcessSample, alive: dict[Key, ProcessSample], worn: dict[Key, int], *,
                    is_first: bool) -> _Record:
        """The record of a process that wasn't there at the look before."""
        parent, balance = process.parent, process.faults * PAGE - process.resident
        if parent is not None:
            from_job = alive[parent].faults * PAGE + self._records[parent].from_job
            return _Record(parent, worn.get(parent), min(process.resident, from_job), balance)
        # The init's first child is the job's first process, which inherited its pages from the keeper. Its other
        # children are orphans whose parent ended between two looks.
        is_job = (is_first and not self._records) or process.beside
        return _Record(None, None, 0 if is_job else process.resident, balance)

    def _charge(self, process: ProcessSample, alive: dict[Key, ProcessSample]) -> int:
        record = self._records[process.key]
        alone = record.from_job
        if record.parent in alive and record.worn is not None:
            alone = min(alone, self._records[record.parent].wear - record.worn)
        return min(process.resident, process.faults * PAGE + alone)


def key_of(pid: int) -> Key:
    """The key of the process that has the number *pid* now; one of GONE if no process has it."""
    with process(pid) as folder:
        return pid, int(fields_of(folder)[19])


def is_there(key: Key) -> bool:
    """Whether the process of *key* still has its number: it runs, or it is dead and not reaped."""
    try:
        return key == key_of(key[0])
    except GONE:
        return False


def look(init: Key, beside: Iterable[Key] = ()) -> tuple[list[ProcessSample], float]:
    """
    List the processes of a sandbox, parents before children: the descendants of its init, and the processes *beside*
    its first one with theirs. And the processor seconds of those that the init has reaped. A process that ends during
    the look is left out; one that is forked meanwhile may be.

    A process outside is never found, although a number that is read here may be another process's a moment later: an
    open folder of /proc stays with its process and can't be read once that was reaped, and a process is taken only if
    its parent is the init or was found before. (An orphan gets an ancestor as its parent, and all ancestors were found
    before it.)
    """
    found: list[ProcessSample] = []
    ours = {init[0]}
    waiting: list[tuple[int, Key | None]] = []
    roots = dict(beside)
    try:
        with process(init[0]) as folder:
            stat = fields_of(folder)
            if int(stat[19]) != init[1]:
                return [], 0.0
            waiting += [(pid, None) for pid in sorted(children_of(folder, init[0]))]
        spent = _seconds(stat[13:15])
    except GONE:
        return [], 0.0
    waiting += [(pid, None) for pid in roots]
    while waiting:
        pid, parent = waiting.pop(0)
        with contextlib.suppress(*GONE), process(pid) as folder:
            stat = fields_of(folder)
            if int(stat[19]) != roots[pid] if pid in roots else int(stat[1]) not in ours:
                continue
            sample = _sample(folder, pid, parent, stat, beside=pid in roots)
            children = children_of(folder, pid, sample.tasks)
            found.append(sample)
            ours.add(pid)
            waiting += [(child, sample.key) for child in children]
    return found, spent


class Looks:
    """The looks at one sandbox, not by two threads at once. C takes them where each process has one task and they are few."""

    def __init__(self) -> None:
        self._tree = ProcessTree()
        self._found: list[ProcessSample] = []

    def look(self, init: Key, beside: Iterable[Key] = ()) -> tuple[list[ProcessSample], float]:
        roots = [init, *beside]
        differs = self._tree.look(roots)
        if differs is None:
            self._found = []
            return look(init, roots[1:])
        if differs:
            found: list[ProcessSample] = []
            for (pid, parent, started, resident, tables, shared, faults, late, spent,
                 waited) in self._tree.processes():
                found.append(ProcessSample(
                    (pid, started), None if parent < 0 else found[parent].key, resident, tables, shared, faults, 1e-9 * spent,
                    waited / TICKS_PER_S, 1, late, (pid, started) in roots))
            self._found = found
        return self._found, self._tree.gone / TICKS_PER_S


def _sample(folder: int, pid: int, parent: Key | None, stat: list[bytes], *, beside: bool) -> ProcessSample:
    # The clock is found by the process's number, so this comes before `status` is read from the folder: if that read
    # works, the process still had its number here.
    spent = _processor_time(pid, stat)
    for _ in range(_TRIES):
        before = _faults(stat)
        resident, tables, shared = _memory(folder, int(stat[17]))
        stat = fields_of(folder)
        if before == _faults(stat):
            break
    return ProcessSample((pid, int(stat[19])), parent, resident, tables, shared, _faults(stat), spent,
                         _seconds(stat[13:15]), int(stat[17]), _faults(stat) - before, beside)


def _faults(stat: list[bytes]) -> int:
    return int(stat[7]) + int(stat[9])


def _memory(folder: int, tasks: int) -> tuple[int, int, int]:
    """The bytes of a process's anonymous memory with swap, of its page tables, and of the files in memory that it maps."""
    resident = tables = shared = 0
    status = _read(folder, "status")
    if tasks > 1 and b"\nRssAnon:" not in status:  # its first thread has ended, and tells of no memory
        status = next((each for each in _of_threads(folder, "status") if b"\nRssAnon:" in each), status)
    for line in status.split(b"\n"):
        name, _, value = line.partition(b":")
        if name in (b"RssAnon", b"VmSwap"):
            resident += int(value.split()[0]) << 10
        elif name == b"VmPTE":
            tables = int(value.split()[0]) << 10
        elif name == b"RssShmem":
            shared = int(value.split()[0]) << 10
    return resident, tables, shared


def _processor_time(pid: int, stat: list[bytes]) -> float:
    """
    Processor seconds of all threads of *pid*, by its clock: clock_getcpuclockid(3), which needs no privilege. Where the
    kernel doesn't offer that of another process, the whole ticks in its *stat*.
    """
    try:
        return time.clock_gettime(clock_of(pid))
    except OSError:
        return _seconds(stat[11:13])


def clock_of(pid: int) -> int:
    return ~pid << 3 | _CPUCLOCK_SCHED


def _seconds(ticks: list[bytes]) -> float:
    return sum(map(int, ticks)) / TICKS_PER_S


def times_of(stat: list[bytes]) -> float:
    """Processor seconds of a process and of the children that it waited for, by the whole ticks in its *stat*."""
    return _seconds(stat[11:15])


@contextlib.contextmanager
def process(pid: int) -> Iterator[int]:
    """A descriptor of the folder of the process that has the number *pid* now. It stays with that process."""
    folder = reserve.opened(lambda: os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        yield folder
    finally:
        os.close(folder)


def fields_of(folder: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third on. The second, a name, may hold spaces and parentheses."""
    return _read(folder, "stat").rpartition(b")")[2].split()


def pending_of(folder: int) -> int:
    """The signals that wait for a process or its first thread; bit 0 is signal 1."""
    rows = (line.split() for line in _status(folder) if line.startswith((b"SigPnd:", b"ShdPnd:")))
    return functools.reduce(operator.or_, (int(mask, 16) for _, mask in rows), 0)


def numbers_of(folder: int) -> list[int]:
    """A process's numbers in its pid namespaces, from this one on inwards."""
    return [int(number) for line in _status(folder) if line.startswith(b"NSpid:") for number in line.split()[1:]]


def _status(folder: int) -> list[bytes]:
    """The lines of a process's status. Of the name, which the process chooses, the kernel escapes newlines alone."""
    return _read(folder, "status").split(b"\n")


def children_of(folder: int, pid: int, tasks: int = 1) -> list[int]:
    """The children of all threads of *pid*, which the kernel lists by the thread that forked them."""
    if tasks == 1:
        return [int(child) for child in _read(folder, f"task/{pid}/children").split()]
    found: set[int] = set()
    for _ in range(_TRIES):
        complete = True
        for thread in _threads(folder):
            try:
                found.update(int(child) for child in _read(folder, f"task/{thread}/children").split())
            except GONE:
                complete = False  # the thread has ended, and another thread has its children now
        if complete:
            break
    return sorted(found)


def _threads(folder: int) -> list[str]:
    tasks = reserve.opened(lambda: os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder))
    try:
        return os.listdir(tasks)
    finally:
        os.close(tasks)


def states_of(folder: int) -> set[bytes]:
    """The states of a process's threads."""
    return {each.rpartition(b")")[2].split()[0] for each in _of_threads(folder, "stat")}


def _of_threads(folder: int, name: str) -> Iterator[bytes]:
    """The contents of that file of each thread."""
    for thread in _threads(folder):
        with contextlib.suppress(*GONE):
            yield _read(folder, f"task/{thread}/{name}")


def _read(folder: int, name: str) -> bytes:
    fd = reserve.opened(lambda: os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder))
    try:
        data = last = os.read(fd, 1 << 14)
        while len(last) > _PIECE:  # the kernel gives no more than a page at a time: of the children of one, some 600
            last = os.read(fd, 1 << 14)
            data += last
        return data
    finally:
        os.close(fd)
