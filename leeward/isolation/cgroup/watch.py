"""
How much memory and time a tree of processes takes, where no controller counts it.

Runs in:   the daemon. `Account` is pure; `look` reads /proc.
Needs:     CONFIG_PROC_CHILDREN. Reads only files that are open to all: a job isn't dumpable,
           so an ordinary user can't have its smaps, pagemap or maps.
Source:    proc_pid_stat(5), proc_pid_status(5), proc_pid_task_tid_children(5)

The kernel tells the resident pages of a process, but not which of them it shares with the
process that it was forked from. Adding them up would count a job's 100 MB once for each process
of its pool. What is told as well is the number of page faults, and a page that a child shares with
its parent becomes the child's alone only if the child writes to it, which is a fault of the child's,
or if the parent writes to it or gives it back: the parent's faults rise, or its resident pages fall.
So a process is charged the smaller of

    its resident pages,
    its own faults since it was forked, and its parent's wear since then,

where wear is faults less resident pages: it never falls, and a fault that brings a fresh page leaves
it as it is. That is never less than what the process holds alone, and never more than its resident
pages. A fault gives one page because jobs run without huge pages. The wear at the fork is taken
from the look before, so take one before the job starts. Where the parent has gone or was never
seen before, the process is charged all that it may have had from the job's other processes.

Files on the job's file system are charged once, as that file system tells, whoever maps them.
Not seen: buffers of pipes and sockets, bounded by the limits on descriptors and processes; and what
a process faults into the memory of another that it shares (vfork), once it has gone, if that one gave
back as much between the same two looks. Seccomp refuses jobs what else would hold memory without a
page in any process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from leeward.dataclass import dataclass, field

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

#: A job that starts and ends threads all the time could else keep its children out of sight.
_TRIES = 3

#: A process, whatever becomes of its number: pid and start time in clock ticks.
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Process:
    """
    One process at one moment.

    Attributes:
        parent: its parent's key, or None for a child of the sandbox's init.
        resident: bytes of anonymous memory, in swap too.
        tables: bytes of its page tables.
        shared: bytes of files in memory that it maps.
        faults: page faults, of all its threads, since it was forked.
        time: clock ticks, user and system, with those of children that were waited for.
        tasks: its threads.
    """

    key: Key
    parent: Key | None
    resident: int
    tables: int
    shared: int
    faults: int
    time: int
    tasks: int


@dataclass(slots=True)
class _Record:
    """
    What is remembered of a process from look to look. All in bytes.

    Attributes:
        worn: the parent's wear at the fork or before, None where it isn't known.
        from_job: what it had from the job's other processes at its fork, at most.
        balance: faults less resident pages, at the last look.
        wear: the rises of `balance` so far.
    """

    parent: Key | None
    worn: int | None
    from_job: int
    balance: int
    wear: int = 0


@dataclass(slots=True)
class Account:
    """
    What a job takes, from one look to the next.

    Attributes:
        memory: bytes at the last look.
        memory_peak: bytes at the look that found most.
        time: clock ticks; never goes back.
        tasks: at the look that found most.
    """

    memory: int = 0
    memory_peak: int = 0
    time: int = 0
    tasks: int = 0
    _records: dict[Key, _Record] = field(default_factory=dict)

    def note(self, processes: Iterable[Process], *, files: int | None, spent: int = 0,
             hidden: int = 0) -> None:
        """
        Take in one look.

        Args:
            processes: parents before children, and the job before orphans.
            files: bytes in files on the job's file system, or None: then mapped ones are
                charged to each process that maps them.
            spent: clock ticks of processes that are gone, as their init knows them.
            hidden: bytes that none of these shows.
        """
        alive = {process.key: process for process in processes}
        before, self._records = self._records, {}
        worn = {key: record.wear for key, record in before.items()}
        for key, process in alive.items():
            self._records[key] = before.get(key) or self._first_look(process, alive, worn, is_first=not before)
        for key, record in self._records.items():
            balance = alive[key].faults * PAGE - alive[key].resident
            record.wear += max(0, balance - record.balance)
            record.balance = balance
        charged = sum(self._charge(process, alive) + process.tables for process in alive.values())
        self.memory = charged + hidden + (files if files is not None else sum(each.shared for each in alive.values()))
        self.memory_peak = max(self.memory_peak, self.memory)
        self.time = max(self.time, spent + sum(process.time for process in alive.values()))
        self.tasks = max(self.tasks, sum(process.tasks for process in alive.values()))

    def _first_look(self, process: Process, alive: dict[Key, Process], worn: dict[Key, int], *,
                    is_first: bool) -> _Record:
        """
        What can be said of the fork of a process that wasn't there at the look before.
        """
        parent, balance = process.parent, process.faults * PAGE - process.resident
        if parent is not None:
            from_job = alive[parent].faults * PAGE + self._records[parent].from_job
            return _Record(parent, worn.get(parent), min(process.resident, from_job), balance)
        # The init's first child is the job, all it was born with the keeper's. Others are orphans whose
        # parent died unseen.
        is_job = is_first and not self._records
        return _Record(None, None, 0 if is_job else process.resident, balance)

    def _charge(self, process: Process, alive: dict[Key, Process]) -> int:
        record = self._records[process.key]
        alone = record.from_job
        if record.parent in alive and record.worn is not None:
            alone = min(alone, self._records[record.parent].wear - record.worn)
        return min(process.resident, process.faults * PAGE + alone)


def key_of(pid: int) -> Key:
    """
    Who has the number *pid* now.

    Raises:
        FileNotFoundError, ProcessLookupError: nobody.
    """
    folder = _open(pid)
    try:
        return pid, int(_stat(folder)[19])
    finally:
        os.close(folder)


def is_there(key: Key) -> bool:
    """
    Whether the number in *key* is still that process's: running, or dead and not reaped.
    """
    try:
        return key == key_of(key[0])
    except (FileNotFoundError, ProcessLookupError):
        return False


def look(init: Key) -> tuple[list[Process], int]:
    """
    The processes under the sandbox's init, parents before children, and the clock ticks of
    those that the init has reaped.

    A process that ends meanwhile is left out; one that is forked meanwhile may be.

    No stranger is ever found, though a number that is read here may be somebody else's a moment
    later. A folder of /proc stays with its process, and can't be read once that has been reaped; and
    who hasn't the init or one of those found before as its parent is none of the sandbox's. (An orphan
    goes to an ancestor, and those were all found before it.)
    """
    found: list[Process] = []
    ours = {init[0]}
    waiting: list[tuple[int, Key | None]] = []
    try:
        folder = _open(init[0])
        try:
            stat = _stat(folder)
            if int(stat[19]) != init[1]:
                return [], 0
            waiting += [(pid, None) for pid in sorted(_children(folder, init[0]))]
        finally:
            os.close(folder)
        spent = sum(map(int, stat[13:15]))
    except (FileNotFoundError, ProcessLookupError):
        return [], 0
    while waiting:
        pid, parent = waiting.pop(0)
        try:
            folder = _open(pid)
            try:
                stat = _stat(folder)
                if int(stat[1]) not in ours:
                    continue
                process = _process(folder, pid, parent, stat)
                children = _children(folder, pid, process.tasks)
            finally:
                os.close(folder)
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(process)
        ours.add(pid)
        waiting += [(child, process.key) for child in children]
    return found, spent


def _process(folder: int, pid: int, parent: Key | None, stat: list[bytes]) -> Process:
    resident = tables = shared = 0
    for line in _read(folder, "status").splitlines():
        name, _, value = line.partition(b":")
        if name in (b"RssAnon", b"VmSwap"):
            resident += int(value.split()[0]) << 10
        elif b"VmPTE" == name:
            tables = int(value.split()[0]) << 10
        elif b"RssShmem" == name:
            shared = int(value.split()[0]) << 10
    return Process((pid, int(stat[19])), parent, resident, tables, shared, int(stat[7]) + int(stat[9]),
                   sum(map(int, stat[11:15])), int(stat[17]))


def _open(pid: int) -> int:
    """
    The folder of the process that has the number *pid* now, whoever has it later.
    """
    return os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _stat(folder: int) -> list[bytes]:
    """
    The fields of /proc/PID/stat from the third on: the second may hold anything.
    """
    return _read(folder, "stat").rpartition(b")")[2].split()


def _children(folder: int, pid: int, tasks: int = 1) -> list[int]:
    """
    The children of all threads of *pid*: the kernel keeps them by the thread that forked.
    """
    if tasks == 1:
        return [int(child) for child in _read(folder, f"task/{pid}/children").split()]
    found: set[int] = set()
    for _ in range(_TRIES):
        complete = True
        for thread in _threads(folder):
            try:
                found.update(int(child) for child in _read(folder, f"task/{thread}/children").split())
            except (FileNotFoundError, ProcessLookupError):
                complete = False  # the thread has ended; its children are another thread's now
        if complete:
            break
    return sorted(found)


def _threads(folder: int) -> list[str]:
    tasks = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.listdir(tasks)
    finally:
        os.close(tasks)


def _read(folder: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)
