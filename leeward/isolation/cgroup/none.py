"""
The driver for hosts where no controller may be used: rlimits, one processor, and a watch.

Runs in:   the daemon.
Leaves:    what a job takes between two looks. One that touches memory as fast as it can goes past
           its limit by what it can touch meanwhile: looks come closer together as it comes nearer to the
           limit, so that this is an eighth of the limit and what the daemon is late by.

Tasks are counted by the kernel (RLIMIT_NPROC, per user namespace and uid from Linux 5.14 on). Those of the host's
root it doesn't refuse, whatever he is called in a user namespace: where workers would be his, this driver can't serve.
Time is bounded by fixing the job to one processor: more than 100 % can't be had, less than
100 % can't be enforced. Memory is what `watch` finds; RLIMIT_DATA refuses a single process what
would be past the limit anyway, as a MemoryError in the job.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from collections.abc import Mapping

from leeward._native import privileges
from leeward._native.spawn import Clone, clone
from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import watch
from leeward.isolation.cgroup.entry import Entry, Gauges, Sockets, Usage, no_sockets
from leeward.isolation.cgroup.group import kill
from leeward.outcome import Limit
from leeward.spec.limits import KIB, MIB, Limits

#: Seconds between looks, at most and at least. A look at one process takes some 0.2 ms, at 32 of them 1 ms.
TICK_S = 0.01
SHORTEST_S = 0.001

#: Bytes a second that a job can touch at most: it has one processor. MAP_POPULATE touched 2.4 GiB/s where
#: this was written.
FASTEST = 4 << 30

#: Of a job's limit, what it may go past it by before a look that comes in time. As much again is left to
#: looks that come late, to hold a quarter.
PAST = 8

#: A look is never sooner than this many times what the one before took: a fifth of the daemon's time for a job
#: with many processes that rests close to its limit.
REST = 4

#: Tasks of the user namespace that are not the job's: the keeper, the job's init, and the
#: init and job of a runner that is armed meanwhile.
OTHERS = 4

#: Bytes that a single process may reserve on top of the memory limit: for each of its tasks a
#: stack, hardly touched, and what the interpreter has from the keeper.
STACK = 8 * MIB
INTERPRETER = 32 * MIB


#: What can wait in a socket's queue: SO_SNDBUF, which the filter keeps at net.core.wmem_default, of
#: 208 KiB. No resident set shows it, so each socket past the first few is charged in full.
SOCKET = 208 * KIB
FREE_SOCKETS = 32


#: Looks in a row that may fail before a job that nobody can watch is ended: half a second.
MOST_MISSED = 50
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class NoneLeaf:
    """
    A job that is watched.
    """

    needs_ticks = True
    entry = Entry()

    def __init__(self, cpu: int, limits: Limits) -> None:
        self._cpu, self._limits = cpu, limits
        self._account = watch.Account()
        self._init: watch.Key | None = None
        self._alive: set[watch.Key] = set()
        self._broken = False
        self._missed = 0
        self._look_s = 0.0

    @property
    def tick_interval(self) -> float:
        """
        Until the job could be past its limit by an eighth, if it did nothing but touch memory from now on.
        """
        limit = self._limits.memory
        soon = (limit - self._account.memory + limit // PAST) / FASTEST
        return min(max(soon, SHORTEST_S, REST * self._look_s), TICK_S)

    def armed(self) -> None:
        return  # there is nothing to hold a share by

    def leaves(self) -> None:
        return

    def apply(self, limits: Limits) -> None:
        self._limits = limits

    def rlimits(self) -> Mapping[int, int]:
        limits = self._limits
        return {resource.RLIMIT_NPROC: limits.processes + OTHERS,
                resource.RLIMIT_DATA: limits.memory + limits.processes * STACK + INTERPRETER}

    def cpu(self) -> int | None:
        return self._cpu

    def usage(self) -> Usage:
        account = self._account
        return Usage(account.time / watch.TICKS_PER_S, account.memory_peak, int(self._broken),
                     int(account.tasks >= self._limits.processes))

    def gauges(self) -> Gauges | None:
        return None

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets) -> Limit | None:
        started = time.monotonic()
        try:
            processes, spent = self._look(init_pid)
        except OSError as error:
            if error.errno not in _SHORT:
                raise
            # Blind for a moment, because the daemon is short of descriptors or memory; not for long.
            self._missed += 1
            self._broken = self._broken or self._missed > MOST_MISSED
            return Limit.MEMORY if self._broken else None
        self._missed = 0
        self._alive = {process.key for process in processes}
        self._account.note(processes, files=_bytes_in_files(files_fd) if files_fd >= 0 else None, spent=spent,
                           hidden=max(0, sockets() - FREE_SOCKETS) * SOCKET)
        self._look_s = time.monotonic() - started
        self._broken = self._broken or self._account.memory > self._limits.memory
        return Limit.MEMORY if self._broken else None

    def _look(self, init_pid: int) -> tuple[list[watch.Process], int]:
        """
        Look below the process that had the init's number at the first look, when its keeper had just
        named it. Later the number could be a stranger's.
        """
        if self._init is None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self._init = watch.key_of(init_pid)
        return ([], 0) if self._init is None else watch.look(self._init)

    def kill(self) -> None:
        """
        SIGKILL to those that the last look found. The end of the init ends all: this is for haste.
        """
        for key in self._alive:
            self._kill_one(key)

    @staticmethod
    def _kill_one(key: watch.Key) -> None:
        kill(key[0], lambda: watch.is_there(key))

    def remove(self) -> bool:
        return True


def _bytes_in_files(fd: int) -> int:
    system = os.fstatvfs(fd)
    return (system.f_blocks - system.f_bfree) * system.f_frsize


class NoneWorker:
    """
    A worker, and the processor that its jobs are fixed to.
    """

    keeper = Entry()

    def __init__(self, cpu: int) -> None:
        self._cpu = cpu

    def leaf(self, sequence: int, limits: Limits, *, patient: bool = False) -> NoneLeaf:
        return NoneLeaf(self._cpu, limits)

    def remove(self) -> bool:
        return True


def _tasks_are_refused() -> bool:
    """
    Is a fork past RLIMIT_NPROC refused to who has this user's id and no capability? setrlimit(2)
    """
    try:
        pid, pidfd = clone(Clone(0))
    except KernelRefusal:
        return True  # without clone3 there are no workers: the start says so
    if 0 == pid:
        refused = False
        try:
            privileges.drop_capabilities()  # each of two would do to be let
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))  # this process is one, and its parent another
            child, _ = clone(Clone(0))
            if 0 == child:
                os._exit(0)
            os.waitpid(child, 0)
        except KernelRefusal as refusal:
            refused = errno.EAGAIN == refusal.errno
        finally:
            os._exit(not refused)
    os.close(pidfd)
    return 0 == os.waitpid(pid, 0)[1]


class NoneDriver:
    """
    Limits without controllers.
    """

    name = "none"
    degraded = True
    memory_counted = False
    affinity_fixed = True
    huge_pages = False

    def __init__(self, passed_over: tuple[tuple[str, str], ...] = ()) -> None:
        """
        Raises:
            Unsupported: the kernel doesn't list children, so a job can't be watched; or refuses this user no task.
        """
        pid = os.getpid()
        if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
            raise Unsupported("cgroup", have="no controllers, and no /proc/PID/task/TID/children",
                              need="controllers, or a kernel with CONFIG_PROC_CHILDREN",
                              cure="systemd-run --user --scope -p Delegate=yes leeward daemon run")
        # Root's workers have ids of their own.
        if os.geteuid() and not _tasks_are_refused():
            raise Unsupported("cgroup", have="no controllers, and the host's root under another name, whom "
                              "RLIMIT_NPROC refuses nothing", need="controllers, or another user",
                              cure="start the daemon as a user who isn't the host's root")
        self.passed_over = passed_over
        self._cpus = sorted(os.sched_getaffinity(0))

    @property
    def detail(self) -> Mapping[str, str]:
        return {"memory": f"a watch every {TICK_S * 1000:g} ms or more often, and RLIMIT_DATA",
                "processes": "RLIMIT_NPROC", "cpu": "one processor per worker"}

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> NoneWorker:
        return NoneWorker(self._cpus[slot % len(self._cpus)])

    def sweep(self) -> int:
        return 0

    def close(self) -> None:
        """
        Nothing was made.
        """
