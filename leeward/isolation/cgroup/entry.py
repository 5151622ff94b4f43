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
from typing import TYPE_CHECKING

from leeward._native.loop import Gauge
from leeward.dataclass import dataclass
from leeward.outcome import Limit
from leeward.protocols import Protocol
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.isolation.cgroup.nest import GroupNest

Sockets = Callable[[], int]


def no_sockets() -> int:
    """The count of a caller that can't count sockets."""
    return 0


@dataclass(frozen=True, slots=True)
class Entry:
    """
    The descriptors by which a new process gets into a group. The driver owns them.

    Attributes:
        into: the group's folder, for CLONE_INTO_CGROUP; or -1.
        attach: tasks files of version 1 hierarchies, open for writing; the child writes "0" to each of them
            before it does anything else.
    """

    into: int = -1
    attach: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """
    The resources that the processes of a leaf have used so far.

    Attributes:
        cpu_time: seconds of processor time, user and system together.
        memory_peak: bytes; 0 if the host can't measure it.
        oom_kills: processes that were ended because memory ran out.
        forks_refused: forks and new threads that the limit on processes refused.
    """

    cpu_time: float = 0.0
    memory_peak: int = 0
    oom_kills: int = 0
    forks_refused: int = 0


@dataclass(frozen=True, slots=True)
class Gauges:
    """
    The files from which the event loop in C reads the figures of `Leaf.usage`. The leaf owns the descriptors.

    Attributes:
        time_unit: seconds per unit of *time*.
        before: the figures when the leaf was made, which are subtracted. Nothing is subtracted from the peak.
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
        needs_ticks: True if `usage` returns the figures of the last `tick`; False if the kernel counts.
    """

    needs_ticks: bool

    @property
    def tick_interval(self) -> float:
        """Seconds until the next call of `tick`, while a job runs."""

    def armed(self) -> None:
        """
        Give the leaf a job's share of the processor from now on: either its runner is ready for a job, or a job waits
        for the runner, and a smaller share would make arming take too long. May be called again.
        """

    def lower_priority(self) -> None:
        """
        Lower the leaf's share of the processor until the next `armed`: its job has been answered, and nothing waits for
        the end of its processes.
        """

    @property
    def entry(self) -> Entry:
        """The entry for the job's first process; see the docstring of this module."""

    def apply(self, limits: Limits) -> None:
        """
        Set *limits*; writes only those that differ from the limits in force. Call it right before `rlimits` are
        set from outside.

        Raises:
            LeewardError, OSError: a limit can't be set, or the job has gone.
        """

    def rlimits(self) -> Mapping[int, int]:
        """Resource limits, RLIMIT_* to value, that the job must set, because no controller limits the resource."""

    def cpu(self) -> int | None:
        """The processor that the job must be pinned to, or None if a controller limits its processor time."""

    def usage(self) -> Usage:
        """The resources that the job has used so far. The figures stay when the processes have gone."""

    def memory(self) -> int:
        """The bytes of memory that the job has now; 0 if that can't be measured."""

    def cpu_time(self) -> float:
        """Seconds of processor time that the job has used so far."""

    def gauges(self) -> Gauges | None:
        """The files with the figures of `usage`, if the kernel counts all of them; else None."""

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets,
             charged: int = 0) -> Limit | None:
        """
        Enforce the limits that the kernel doesn't enforce. If the leaf `needs_ticks`, also call this once when a runner
        is armed, before its job starts, and once before the job's processes end.

        Args:
            init_pid: the pid of the sandbox's init in the daemon's pid namespace.
            files_fd: a descriptor on the job's writable file system, or -1.
            sockets: counts the job's sockets, because no resident set shows their buffers.
            charged: bytes of shared mappings without a file that the job was granted.

        Returns:
            The limit that the job has exceeded, so that the caller must end the job; or None.
        """

    def ended(self, spent: float) -> None:
        """
        Note that the job's processes have gone. A driver for which the kernel doesn't count their time uses *spent*.

        Args:
            spent: processor seconds of all processes that the job's init has reaped, from their start on.
        """

    def share(self) -> None:
        """
        Note that the leaf belongs to a live sandbox from now on: if one of its processes is ended because memory ran
        out, the others live on, if the driver supports that.
        """

    def rest(self) -> None:
        """Close descriptors that aren't needed now. The leaf opens them again when they are needed."""

    def nest(self, name: str) -> GroupNest | None:
        """
        Make a group in the leaf for one more process and its descendants. Returns None if the driver has no such
        groups. `remove` removes the group, too.

        Raises:
            KernelRefusal: nothing was made.
        """

    def joined(self, pid: int) -> None:
        """Note that *pid*, in the daemon's pid namespace, is a process of the sandbox that isn't below its init."""

    def parted(self, pid: int, spent: float) -> None:
        """
        Note that the process *pid* of `joined` has ended. The process, with the children for which it waited, has used
        *spent* seconds of processor time.
        """

    def kill(self) -> None:
        """Send SIGKILL to every process in the leaf. Returns before they have gone."""

    def is_there(self) -> bool:
        """
        Whether the group exists. Another program on the host may have removed it while it was empty.

        Raises:
            KernelRefusal: stat(2) failed with another error.
        """

    def remove(self) -> bool:
        """
        Give the leaf back. Either it is removed and its descriptors are closed, or its empty group is kept for a
        later job of this worker.

        Returns:
            False while a process is in the leaf, or a dead process hasn't left it yet: call again later.
        """


class WorkerGroup(Protocol):
    """The group of one worker: its keeper, and one leaf per job."""

    @property
    def keeper(self) -> Entry:
        """The entry for the keeper, and by inheritance for the init of each sandbox."""

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
        """Release what is kept for further leaves, since none is made for a while."""

    def remove(self) -> bool:
        """Remove the groups of the worker, as `Leaf.remove` does for a leaf. The leaves must have been removed before."""


class Driver(Protocol):
    """
    One way to hold jobs to their limits.

    Attributes:
        name: "v2", "v1" or "none".
        degraded: no controller holds the limits.
        memory_counted: the kernel counts all of a job's memory, also memory that is in no process's resident set.
            If False, seccomp must refuse the calls that make such memory.
        affinity_fixed: `Leaf.cpu` names the job's processor, and the job must not change it.
        passed_over: the drivers that were tried before this one, each with the reason why it doesn't work here.
        detail: facts about the driver that `leeward status` shows.
        worker_descriptors: the number of descriptors that a worker's group holds open, without those of its leaves.
        leaf_descriptors: the greatest number of descriptors that a leaf holds open.
        resting_descriptors: the descriptors that a worker's group and one leaf hold after `rest` of both.
        kept_leaves: the greatest number of leaves without a job that a worker keeps for its next jobs.
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
        Set the greatest number of leaves that each worker made from now on has at once, including those that are kept
        for a later job; 0 for no bound.
        """

    def annex(self, number: int, pid: int) -> Callable[[], None]:
        """
        Let the process *pid*, another process of this daemon, make groups of its own: move it to a place where it can.
        Returns the function that removes the place when the process has ended.

        Raises:
            KernelRefusal: the process can't be moved.
        """

    def sweep(self) -> int:
        """
        Remove the groups of dead daemons of this user.

        Returns:
            The number of daemons whose groups were found. A group whose processes are still dying can't be removed
            at once, and stays for the next sweep.
        """

    def close(self) -> None:
        """Remove all groups that the driver made, which the caller has emptied, and undo its changes to other groups."""
