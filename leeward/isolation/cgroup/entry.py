"""
What every cgroup driver offers: the words, not the deeds.

Runs in:   the daemon; an Entry's descriptors are used in the crossing.

A driver has a group per worker, and in it a leaf per job. **Only the job's own processes go
into a leaf.** The sandbox's init goes where its keeper is: it shares the keeper's memory, and
the kernel, when it ends a process for want of memory, ends all that share its memory. So the
keeper clones the init without an entry, and the init clones the job with the leaf's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from leeward._native.loop import Gauge
from leeward.dataclass import dataclass
from leeward.outcome import Limit
from leeward.spec.limits import Limits

Sockets = Callable[[], int]


def no_sockets() -> int:
    """
    For who can't tell.
    """
    return 0


@dataclass(frozen=True, slots=True)
class Entry:
    """
    The way into a group. The descriptors stay the driver's.

    Attributes:
        into: for CLONE_INTO_CGROUP, or -1.
        attach: tasks files of version 1 hierarchies, open for writing; the child writes "0" to each of them
            before it does anything else.
    """

    into: int = -1
    attach: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """
    What a leaf has used so far.

    Attributes:
        cpu_time: seconds, of user and system together.
        memory_peak: bytes; 0 where the host can't tell.
        oom_kills: processes that were ended for want of memory.
        forks_refused: forks and new threads that the limit on processes refused.
    """

    cpu_time: float = 0.0
    memory_peak: int = 0
    oom_kills: int = 0
    forks_refused: int = 0


@dataclass(frozen=True, slots=True)
class Gauges:
    """
    Where the figures of `Leaf.usage` stand, for who reads them without Python. The descriptors stay the leaf's.

    Attributes:
        time_unit: seconds that one of *time* is.
        before: what stood there when the leaf was made; of the peak, nothing.
    """

    time: Gauge
    time_unit: float
    peak: Gauge
    oom: Gauge
    forks: Gauge
    before: Usage


class Leaf(Protocol):
    """
    The group of one job.

    Attributes:
        needs_ticks: `usage` knows what the last `tick` saw; else the kernel counts.
    """

    needs_ticks: bool

    @property
    def tick_interval(self) -> float:
        """
        Seconds until `tick` is to be called next while a job runs.
        """

    def armed(self) -> None:
        """
        From now on it has a job's share of the processor: the runner waits for its job, or its arming
        takes too long with less. Harmless if that was said before.
        """

    def leaves(self) -> None:
        """
        Its job was answered and nobody waits for its end: it takes what others leave of the processor,
        until it is `armed` again.
        """

    @property
    def entry(self) -> Entry:
        """
        For the job's first process; see the head of this module.
        """

    def apply(self, limits: Limits) -> None:
        """
        Set *limits*; touches only what differs from those in force. Call it right before `rlimits`
        are set from outside.

        Raises:
            LeewardError, OSError: they can't be set, or the job has gone.
        """

    def rlimits(self) -> Mapping[int, int]:
        """
        Resource limits, RLIMIT_* to value, that the job must set for what no controller limits.
        """

    def cpu(self) -> int | None:
        """
        The processor that the job must be fixed to, or None if a controller limits its time.
        """

    def usage(self) -> Usage:
        """
        So far; stays what it was once the processes are gone.
        """

    def gauges(self) -> Gauges | None:
        """
        Where the kernel alone keeps all that `usage` tells; None where it doesn't.
        """

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets) -> Limit | None:
        """
        Look after what the kernel doesn't. Where it `needs_ticks`, call it once when a runner is
        armed, before its job starts, and once before the job's processes go.

        Args:
            init_pid: the sandbox's init, as the daemon sees it.
            files_fd: on the job's writable file system, or -1.
            sockets: tells how many the job has, whose buffers no resident set shows.

        Returns:
            The limit that was broken, for which the job must end, or None.
        """

    def kill(self) -> None:
        """
        SIGKILL to every process in the leaf. Returns before they are gone.
        """

    def remove(self) -> bool:
        """
        Give the leaf back: it is removed and its descriptors closed, or its group kept, empty, for a
        later job of this worker.

        Returns:
            False while a process is in it or hasn't quite gone: call again later.
        """


class WorkerGroup(Protocol):
    """
    The group of one worker: its keeper, and one leaf per job.
    """

    @property
    def keeper(self) -> Entry:
        """
        For the keeper, and by inheritance for the init of each sandbox.
        """

    def leaf(self, sequence: int, limits: Limits, *, patient: bool = False) -> Leaf:
        """
        Make the group of the worker's job number *sequence*.

        Args:
            patient: nobody waits for this runner: until it is `armed` it gets a small share of
                the processor where others want it too.

        Raises:
            KernelRefusal: nothing was made.
        """

    def remove(self) -> bool:
        """
        As Leaf.remove; the leaves must have been removed before.
        """


class Driver(Protocol):
    """
    One way to hold jobs to their limits.

    Attributes:
        name: "v2", "v1" or "none".
        degraded: no controller holds the limits.
        memory_counted: the kernel counts all of a job's memory, that without a resident
            page of its own included. If not, seccomp must refuse what makes such memory.
        affinity_fixed: a processor is given by `Leaf.cpu`, and the job must not change it.
        huge_pages: transparent huge pages may stay on. If not, the job calls
            PR_SET_THP_DISABLE: the watch counts page faults.
        passed_over: the drivers that were tried before this one, and why they can't serve.
        detail: for `leeward status`.
    """

    name: str
    degraded: bool
    memory_counted: bool
    affinity_fixed: bool
    huge_pages: bool
    passed_over: tuple[tuple[str, str], ...]

    @property
    def detail(self) -> Mapping[str, str]: ...

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> WorkerGroup:
        """
        Make the group of the worker in *slot*.

        Args:
            owner_uid: the host uid of the worker's keeper.
            limits: the defaults, which most jobs will have.
        """

    def sweep(self) -> int:
        """
        Remove what daemons that are dead left behind; only groups of this user's.

        Returns:
            The number of daemons whose groups were found. What could not be removed at
            once (its processes are dying) stays for the next sweep.
        """

    def close(self) -> None:
        """
        Remove all groups, which the caller has emptied, and leave those that were found as they were.
        """
