"""
The driver for hosts without usable controllers: rlimits, as many processors as the limit is worth, a watch on memory.

Leaves:    memory that a job takes between two looks, which become more frequent near its limit. A job that touches
           memory as fast as it can exceeds the limit by an eighth, and by what it touches while the daemon is late.

Tasks: the kernel counts them (RLIMIT_NPROC, per user namespace and uid from Linux 5.14 on), but not for the host's
           root, not even under another id. If workers would run as the host's root, this driver can't be used.

Processor time: the job is bound to one processor, or to each whole one of its limit. What is below 100 % can't be held.

Memory: `watch` measures it. RLIMIT_DATA also bounds each single process, so a process that asks for more than the limit
           gets a MemoryError instead of being killed; the supervisor raises it for a JIT compiler's code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import struct
import time
from collections.abc import Mapping
from functools import partial
from threading import Lock

from leeward._native.loop import CLOCK, Gauge, JobSeen, JobWatch, first_look
from leeward._native.memfd import memory_file
from leeward._native.steps import Block, Call, Cell, Gives, Step, Table, gives, returns
from leeward.errors import SHORT, KernelRefusal, Unsupported
from leeward.isolation.cgroup import entry, hierarchy, watch
from leeward.isolation.cgroup.entry import Entry, Gauges, Sockets, Usage, no_sockets
from leeward.isolation.cgroup.group import kill
from leeward.spec.limits import KIB, MIB, Limits
from leeward.spec.outcome import Limit

#: The greatest and the smallest pause between two looks, in seconds. A look at four processes takes 0.25 ms by
#: C, 0.13 where none of them has run since the last one, and 0.4 in Python.
TICK_S = 0.01
SHORTEST_S = 0.001

#: The greatest number of bytes that a job on one processor can touch in a second. MAP_POPULATE was measured at 2.4
#: GiB/s.
FASTEST = 4 << 30

#: A job may exceed its limit by an eighth of it before a look that comes in time, and by another eighth before a look
#: that comes late. So the excess is at most a quarter.
PAST = 8

#: The pause before a look is at least this many times as long as the last look took. So a job with many processes that
#: stays close to its limit costs the daemon a fifth of its time.
REST = 4

#: Bytes of memory for each processor that a job with several has at least: else it could exceed its limit by more than an
#: eighth within the shortest pause.
EACH = round(PAST * SHORTEST_S * FASTEST)

#: Tasks of the user namespace that don't belong to the job: the keeper, the job's init, and the init and job process of
#: a runner that is armed meanwhile.
OTHERS = 4

#: Bytes that a single process may reserve on top of the memory limit: a stack for each of its tasks, most of which is
#: never touched, and the interpreter's memory, which is a copy of the keeper's.
STACK = 8 * MIB
INTERPRETER = 32 * MIB


#: Bytes that can wait in a socket's queues: SO_SNDBUF, which the filter keeps at net.core.wmem_default, 208 KiB; as
#: many for SO_RCVBUF of UDP; as many for both directions of TCP together, by `namespaces.small_queues_steps`. No
#: resident set shows them, so each socket beyond the first FREE_SOCKETS is charged in full.
SOCKET = 208 * KIB
FREE_SOCKETS = 32


#: Bytes of kernel memory for a file, folder or link on tmpfs, with its name: 840 to 940 were measured (Linux 6.18).
_INODE = 1 * KIB

#: <linux/capability.h>: _LINUX_CAPABILITY_VERSION_3.
_CAPABILITY_VERSION = 0x20080522

#: Bytes that a job can have beyond what the fast path has seen of it: fast_path_watch.c, FEW_FAULTS and BRIEF_NS.
UNSEEN = 64 * 4 * watch.PAGE + 1_000_000

#: The number of failed looks in a row, half a second, after which a job that can't be watched is ended.
MOST_MISSED = 50


class NoneLeaf(entry.Leaf):
    needs_ticks = True
    entry = Entry()

    def __init__(self, cpus: tuple[int, ...], limits: Limits) -> None:
        self._cpus, self._limits = cpus, limits
        self._account = watch.Account()
        self._looks: watch.Looks | None = None
        self._seen: tuple[object, ...] = ()  # at the last look
        self._init: watch.Key | None = None
        self._alive: set[watch.Key] = set()
        self._alone: watch.ProcessSample | None = None  # at the last look, the job's only process
        self._files: tuple[int, ...] = ()  # _WATCHED of that process
        self._broken = False
        self._missed = 0
        self._look_s = 0.0
        self._beside: dict[int, watch.Key] = {}  # processes whose parent is the keeper
        self._spent_beside = 0.0
        self._shared = False
        self._told = -1  # a memory file with `_figures`
        self._kills_before = 0
        self._telling = Lock()  # the watchdog's thread tells, too: `_told` isn't closed, and another file's, meanwhile

    @property
    def tick_interval(self) -> float:
        """The seconds in which the job could exceed its limit by an eighth if it touched memory as fast as it can."""
        limit = self._limits.memory
        soon = (limit - self._account.memory + limit // PAST) / (FASTEST * (len(self._cpus) if self.cpu() is None else 1))
        return min(max(soon, SHORTEST_S, REST * self._look_s), TICK_S)

    @property
    def only(self) -> int:
        return 0 if self._alone is None else self._alone.key[0]

    def apply(self, limits: Limits) -> None:
        self._limits = limits

    def rlimits(self) -> Mapping[int, int]:
        limits = self._limits
        return {resource.RLIMIT_NPROC: limits.processes + OTHERS,
                resource.RLIMIT_DATA: limits.memory + limits.processes * STACK + INTERPRETER}

    def cpu(self) -> int | None:
        return self._cpus[0] if len(self._cpus) == 1 or self._limits.memory < EACH * len(self._cpus) else None

    def usage(self) -> Usage:
        account = self._account
        return Usage(account.time, account.memory_peak, int(self._broken), int(account.tasks >= self._limits.processes),
                     int(self._broken and entry.is_near(account.memory_peak, self._limits.memory)))

    def armed(self) -> None:
        self._kills_before = self.unseen_kills()

    def unseen_kills(self) -> int:
        return hierarchy.oom_kills()

    def killed_unseen(self, most: int, since: int = -1) -> bool | None:
        if self.unseen_kills() <= (since if since >= 0 else self._kills_before):
            return None
        return entry.is_near(max(self._account.memory_peak, most), self._limits.memory)

    def memory(self) -> int:
        return self._account.memory

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets,
             charged: int = 0) -> Limit | None:
        started = time.monotonic()
        try:
            processes, spent = self._look(init_pid)
        except OSError as error:
            if error.errno not in SHORT:
                raise
            # The daemon has too few descriptors or too little memory, which is usually temporary; if not, the job is
            # ended.
            self._missed += 1
            self._broken = self._broken or self._missed > MOST_MISSED
            return Limit.MEMORY if self._broken else None
        self._missed = 0
        self._alone = processes[0] if len(processes) == 1 and not self._beside else None
        seen = (processes, spent, _bytes_in_files(files_fd) if files_fd >= 0 else None,
                max(0, sockets() - FREE_SOCKETS) * SOCKET + charged, self._limits)
        if not self._shared or seen != self._seen:  # a job's account is also told by C what it has seen
            self._note(*seen)
            self._seen = seen
        self._look_s = time.monotonic() - started
        return Limit.MEMORY if self._broken else None

    def _note(self, processes: list[watch.ProcessSample], spent: float, files: int | None, hidden: int,
              limits: Limits) -> None:
        self._alive = {process.key for process in processes}
        self._account.note(processes, files=files, spent=spent, hidden=hidden)
        self._broken = self._broken or self._account.memory > limits.memory
        with self._telling:
            if self._told >= 0:
                os.pwrite(self._told, self._figures(), 0)

    def _figures(self) -> bytes:
        """What C reads as it does a group's control files."""
        usage = self.usage()
        return b"peak %020d\noom %d\nforks %d\n" % (usage.memory_peak, usage.oom_kills, usage.forks_refused)

    def _look(self, init_pid: int) -> tuple[list[watch.ProcessSample], float]:
        """
        Look at the processes below the init, whose key is read at the first look, when the keeper has just reported its
        pid; later another process could have that pid.
        """
        if self._init is None and not self._shared and not self._beside and (first := first_look(init_pid)) is not None:
            self._init = init_pid, first.init_started
            self._files = first.orphans, first.children, first.stat, first.status
            return [watch.ProcessSample(
                (first.job, first.started), None, first.resident, first.tables, first.shared, first.faults,
                1e-9 * first.spent, 0.0, 1, first.late)], first.gone / watch.TICKS_PER_S
        if self._init is None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self._init = watch.key_of(init_pid)
        if self._init is None:
            return [], 0.0
        if self._looks is None:
            self._looks = watch.Looks()
        processes, spent = self._looks.look(self._init, self._beside.values())
        return processes, spent + self._spent_beside

    def gauges(self) -> Gauges | None:
        """
        For a job of one process, which the fast path counts by itself; it looks no further than that. For a process of a
        live sandbox, what the sandbox's looks find: its own time is the caller's to add.
        """
        if self._shared:
            return self._gauges_of_all()
        alone, account, limits = self._alone, self._account, self._limits
        if (alone is None or self._beside or alone.tasks > 1 or limits.processes == 1 or not self._files
                or self.cpu() is None):
            return None
        nothing, pid = Gauge(-1), alone.key[0]
        orphans, children, stat, status = self._files
        return Gauges(Gauge(watch.clock_of(pid), CLOCK), 1e-9, nothing, nothing, nothing, Usage(-account.others), JobWatch(
            pid, orphans, children, stat, status, FREE_SOCKETS, SOCKET, _INODE,
            round(alone.waited * watch.TICKS_PER_S), limits.memory, account.memory_peak))

    def _gauges_of_all(self) -> Gauges | None:
        if self._told < 0:
            try:
                self._told = memory_file("leeward_figures")
                os.pwrite(self._told, self._figures(), 0)
            except OSError:
                self.rest()
                return None
        peak, oom, forks = (Gauge(self._told, key) for key in ("peak", "oom", "forks"))
        return Gauges(Gauge(-1), 1e-9, peak, oom, forks, Usage())

    def share(self) -> None:
        self._shared = True
        self.rest()

    def saw(self, memory_peak: int) -> None:
        if self._shared:  # that is what a look has found
            return
        account = self._account
        account.memory_peak = max(account.memory_peak, memory_peak)
        account.memory = max(account.memory, memory_peak + UNSEEN)

    def glanced(self, seen: JobSeen) -> bool:
        if self._broken or self._alone is None:
            return False
        account = self._account
        account.memory, account.memory_peak = seen.memory + UNSEEN, max(account.memory_peak, seen.memory_peak)
        account.time = max(account.time, seen.time + account.others)
        if seen.resident:
            account.wore(self._alone.key, seen.faults, seen.late, seen.resident)
        self._look_s = 0.0
        return True

    def rest(self) -> None:
        with self._telling:
            files, self._files, self._told = (*self._files, self._told), (), -1
        for fd in files:
            if fd >= 0:
                os.close(fd)

    def remove(self) -> bool:
        self.rest()
        return True

    def ended(self, spent: float) -> None:
        self._account.end(spent + self._spent_beside)

    def joined(self, pid: int) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            self._beside[pid] = watch.key_of(pid)

    def parted(self, pid: int, spent: float) -> None:
        if self._beside.pop(pid, None) is not None:
            self._spent_beside += spent

    def kill(self) -> None:
        """Send SIGKILL to the processes that the last look found. The end of the init kills all of them, but more slowly."""
        for key in self._alive:
            kill(key[0], partial(watch.is_there, key))


#: The files of /proc by which a job of one process is watched: the first is of its init.
_WATCHED = 4


def _bytes_in_files(fd: int) -> int:
    """The bytes of memory that a job's tmpfs takes, including the kernel's memory for its files, folders and links."""
    system = os.fstatvfs(fd)
    return (system.f_blocks - system.f_bfree) * system.f_frsize + (system.f_files - system.f_ffree) * _INODE


class NoneWorker(entry.WorkerGroup):
    keeper = Entry()

    def __init__(self, cpus: tuple[int, ...]) -> None:
        self._cpus = cpus

    @property
    def processors(self) -> tuple[int, ...]:
        return self._cpus if len(self._cpus) > 1 else ()

    def leaf(self, sequence: int, limits: Limits, *, patient: bool = False) -> NoneLeaf:
        return NoneLeaf(self._cpus, limits)


def _tasks_are_refused() -> bool:
    """
    Whether the kernel refuses a fork beyond RLIMIT_NPROC to a process with this user's id and no capability; False if
    that can't be found out. A child tries it, by steps in C: it may not run Python, since another thread may hold the
    interpreter's lock at the fork. setrlimit(2)
    """
    forked = Cell("forked")
    steps = Table([
        # CAP_SYS_ADMIN and CAP_SYS_RESOURCE each exempt a process from the limit. The header is a version and pid 0,
        # the process itself; the data are two words for each of three sets.
        returns(Call.CAPSET, Block(struct.pack("=Ii", _CAPABILITY_VERSION, 0)), Block(bytes(24))),
        # This process and the child are two processes already.
        returns(Call.PRLIMIT64, 0, resource.RLIMIT_NPROC, Block(struct.pack("=QQ", 1, 1)), 0),
        gives(forked, Call.CLONE, signal.SIGCHLD, 0, 0, 0, 0, optional=True),
        Step(Call.WAIT4, (-1, 0, 0, 0), (), Gives.ANYTHING),  # waits for the fork's child, if there is one
    ])
    try:
        steps.run_aside(0, len(steps.steps))
    except KernelRefusal as refusal:
        return refusal.call == "clone3"  # then no worker can be made, and the daemon's start reports that
    return steps.value(forked) == -errno.EAGAIN


class NoneDriver(entry.Driver):
    name = "none"
    degraded = True
    memory_counted = False
    affinity_fixed = True
    worker_descriptors = resting_descriptors = kept_leaves = 0
    leaf_descriptors = _WATCHED

    def __init__(self, passed_over: tuple[tuple[str, str], ...] = (), *, pinned: bool = False) -> None:
        """
        Unsupported if the kernel doesn't list children, so that a job can't be watched, or RLIMIT_NPROC isn't for this
        user.
        """
        pid = os.getpid()
        if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
            raise Unsupported("cgroup", have="no controllers, and no /proc/PID/task/TID/children",
                              need="controllers, or a kernel with CONFIG_PROC_CHILDREN",
                              cure="systemd-run --user --scope -p Delegate=yes leeward daemon run")
        # The workers of root's daemon have ids of their own.
        if os.geteuid() and not _tasks_are_refused():
            raise Unsupported("cgroup", have="no controllers, and the host's root under another name, whom "
                              "RLIMIT_NPROC refuses nothing", need="controllers, or another user",
                              cure="start the daemon as a user who isn't the host's root")
        self.passed_over, self._pinned = passed_over, pinned
        self._cpus = entry.processors_in_turn()

    @property
    def detail(self) -> Mapping[str, str]:
        return {"memory": f"a watch every {TICK_S * 1000:g} ms or more often, and RLIMIT_DATA",
                "processes": "RLIMIT_NPROC", "cpu": entry.BOUND}

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> NoneWorker:
        return NoneWorker(entry.processors_of(slot, limits, self._cpus)[:1 if self._pinned else None])
