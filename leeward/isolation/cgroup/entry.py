"""
The interface that every cgroup driver implements.

Runs in:   the daemon; an Entry's descriptors are used in the crossing.

A driver makes a group per worker, and in it a leaf per job. **Only the job's own processes are put into a leaf.** The
sandbox's init stays in its keeper's group. It shares the keeper's memory, and when the kernel's OOM killer kills a
process, it kills all processes that share that memory. So the keeper clones the init without an entry, and the init
clones the job with the leaf's entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leeward._native.loop import Gauge
from leeward.dataclass import dataclass
from leeward.outcome import Limit
from leeward.protocols import Protocol
from leeward.spec.limits import Limits

Sockets = Callable[[], int]


def no_sockets() -> int:
    """
    The count of a caller that can't count sockets.
    """
    return 0


@dataclass(frozen=True, slots=True)
class Entry:
    """
    How a new process gets into a group. The driver owns the descriptors.

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
    Where the figures of `Leaf.usage` can be read without Python, by the event loop in C. The leaf owns the descriptors.

    Attributes:
        time_unit: seconds per unit of *time*.
        before: the figures when the leaf was made, to be subtracted. The peak needs none.
    """

    time: Gauge
    time_unit: float
    peak: Gauge
    oom: Gauge
    forks: Gauge
    before: Usage


class Nest(Protocol):
    """
    A group for one process of a live sandbox, and for what descends from it: nest.py.
    """

    @property
    def entry(self) -> Entry: ...

    def time(self) -> float: ...
    def gauge(self) -> Gauge: ...

    @property
    def folder(self) -> int: ...

    def kill(self) -> None: ...

    def kill_by(self, folder: int) -> None: ...

    def remove(self) -> bool: ...


class Leaf(Protocol):
    """
    The group of one job.

    Attributes:
        needs_ticks: `usage` is what the last `tick` saw. If False, the kernel counts.
    """

    needs_ticks: bool

    @property
    def tick_interval(self) -> float:
        """
        Seconds until the next call of `tick`, while a job runs.
        """

    def armed(self) -> None:
        """
        Give it a job's share of the processor from now on: either its runner is ready for a job, or a job waits
        for it, and a smaller share would make arming take too long. May be called again.
        """

    def lower_priority(self) -> None:
        """
        Lower its share of the processor until it is `armed` again: its job has been answered, and nothing waits for
        the end of its processes.
        """

    @property
    def entry(self) -> Entry:
        """
        For the job's first process; see the head of this module.
        """

    def apply(self, limits: Limits) -> None:
        """
        Set *limits*; writes only those that differ from the limits in force. Call it right before `rlimits` are
        set from outside.

        Raises:
            LeewardError, OSError: a limit can't be set, or the job has gone.
        """

    def rlimits(self) -> Mapping[int, int]:
        """
        Resource limits, RLIMIT_* to value, that the job must set, because no controller limits the resource.
        """

    def cpu(self) -> int | None:
        """
        The processor that the job must be pinned to, or None if a controller limits its processor time.
        """

    def usage(self) -> Usage:
        """
        What the job has used so far. It stays as it is once the processes are gone.
        """

    def memory(self) -> int:
        """
        Bytes that it has now; 0 where that can't be told.
        """

    def cpu_time(self) -> float:
        """
        Seconds of processor time that the job has used so far.
        """

    def gauges(self) -> Gauges | None:
        """
        Where to read the figures of `usage`, if the kernel alone counts all of them; else None.
        """

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets,
             charged: int = 0) -> Limit | None:
        """
        Enforce what the kernel doesn't. If the leaf `needs_ticks`, also call it once when a runner is armed, before
        its job starts, and once before the job's processes end.

        Args:
            init_pid: the sandbox's init, as the daemon sees it.
            files_fd: on the job's writable file system, or -1.
            sockets: counts the job's sockets, because their buffers are in no resident set.
            charged: bytes of shared mappings without a file that the job was granted.

        Returns:
            The limit that the job exceeded, so that it must be ended, or None.
        """

    def ended(self, spent: float) -> None:
        """
        Take in that the job's processes are gone. A driver without a kernel's count of their time uses *spent*.

        Args:
            spent: processor seconds of all processes that the job's init has reaped, from their start on.
        """

    def share(self) -> None:
        """
        The leaf is a live sandbox's from now on: where one of its processes is ended for want of memory, the others
        live on, as far as the driver can do that.
        """

    def rest(self) -> None:
        """
        Hold fewer descriptors, until they are needed.
        """

    def nest(self, name: str) -> Nest | None:
        """
        Make a group in it for one more process and its descendants; None where the driver can't. `remove` removes it,
        too.

        Raises:
            KernelRefusal: nothing was made.
        """

    def joined(self, pid: int) -> None:
        """
        *pid*, as the daemon sees it, is a process of the sandbox that isn't below its init.
        """

    def parted(self, pid: int, spent: float) -> None:
        """
        That process has ended; it and the children that it has waited for took *spent* seconds of processor.
        """

    def kill(self) -> None:
        """
        SIGKILL to every process in the leaf. Returns before they are gone.
        """

    def is_there(self) -> bool:
        """
        Whether a process can be put there. Another program on the host may have removed the group while it was empty.

        Raises:
            KernelRefusal: the kernel doesn't say.
        """

    def remove(self) -> bool:
        """
        Give the leaf back. Either it is removed and its descriptors are closed, or its empty group is kept for a
        later job of this worker.

        Returns:
            False while a process is in it, or a dead one hasn't left it yet: call again later.
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
            patient: nothing waits for this runner, so until it is `armed` it gets a small share of the processor
                where other processes compete for it.

        Raises:
            KernelRefusal: nothing was made.
        """

    def rest(self) -> None:
        """
        No leaf is made for a while: give back what is kept for that.
        """

    def remove(self) -> bool:
        """
        Like `Leaf.remove`. The leaves must have been removed before.
        """


class Driver(Protocol):
    """
    One way to hold jobs to their limits.

    Attributes:
        name: "v2", "v1" or "none".
        degraded: no controller holds the limits.
        memory_counted: the kernel counts all of a job's memory, also memory that is in no process's resident set.
            If False, seccomp must refuse the calls that make such memory.
        affinity_fixed: `Leaf.cpu` names the job's processor, and the job must not change it.
        passed_over: the drivers that were tried before this one, and why each can't serve.
        detail: for `leeward status`.
        worker_descriptors: descriptors that a worker's group holds open, beside those of its leaves.
        leaf_descriptors: descriptors that a leaf holds open, at most.
        resting_descriptors: what a worker's group holds with one leaf, after `rest` of both.
        kept_leaves: leaves without a job that a worker keeps for the next jobs, at most.
    """

    name: str
    degraded: bool
    memory_counted: bool
    affinity_fixed: bool
    passed_over: tuple[tuple[str, str], ...]
    worker_descriptors: int
    leaf_descriptors: int
    resting_descriptors: int
    kept_leaves: int

    @property
    def detail(self) -> Mapping[str, str]: ...

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> WorkerGroup:
        """
        Make the group of the worker in *slot*.

        Args:
            owner_uid: the host uid of the worker's keeper.
            limits: the defaults, which apply to most jobs.
        """

    def limit_leaves(self, most: int) -> None:
        """
        Bound the leaves that a worker made from now on has at once to *most*, including those that are kept for a
        later job; 0 is no bound.
        """

    def sweep(self) -> int:
        """
        Remove the groups that dead daemons of this user left.

        Returns:
            The number of daemons whose groups were found. A group whose processes are still dying can't be removed
            at once, and stays for the next sweep.
        """

    def close(self) -> None:
        """
        Remove all groups that the driver made, which the caller has emptied, and restore those that it found.
        """
