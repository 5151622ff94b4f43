"""
The interface that every cgroup driver implements. An Entry's descriptors are used in the crossing.

A driver makes a group per worker, and in it a leaf per job. **Only the job's own processes are put into a leaf.** The
sandbox's init stays in its keeper's group: it shares the keeper's memory, and the kernel's OOM killer kills all
processes that share memory. So the keeper clones the init without an entry, and the init clones the job with the leaf's
entry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from leeward._native.loop import Gauge, JobSeen, JobWatch
from leeward.base.dataclass import dataclass
from leeward.base.protocols import Protocol
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit

if TYPE_CHECKING:
    from leeward.isolation.cgroup.nest import GroupNest

Sockets = Callable[[], int]

#: What `Driver.detail` says of processor time where the affinity holds it.
BOUND = "as many processors per worker as its limit is worth"


def no_sockets() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Entry:
    """The descriptors by which a new process gets into a group. The driver owns them."""

    into: int = -1  # the group's folder, for CLONE_INTO_CGROUP; or -1
    #: Tasks files of version 1, open for writing; the child writes "0" to each before it does anything else.
    attach: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that the processes of a leaf have used so far."""

    cpu_time: float = 0.0   # seconds, user and system together
    memory_peak: int = 0    # bytes; 0 if the host can't measure it
    oom_kills: int = 0      # processes that were ended because memory ran out
    forks_refused: int = 0  # forks and new threads that the limit on processes refused
    limit_hits: int = 0     # rises with `oom_kills` where that was for the leaf's own limit, and not for the host's memory


@dataclass(frozen=True, slots=True)
class Gauges:
    """The files from which the event loop in C reads the figures of `Leaf.usage`. The leaf owns the descriptors."""

    time: Gauge
    time_unit: float  # seconds per unit of `time`
    peak: Gauge
    oom: Gauge
    forks: Gauge
    before: Usage     # the figures when the leaf was made, which are subtracted, but for the peak
    watch: JobWatch | None = None  # in place of the last three files, where no controller counts


#: How far from its limit memory may have been at most when a process was ended for that: the kernel charges in batches.
_NEAR_PART, _NEAR = 16, 4 * MIB


def is_near(peak: int, limit: int) -> bool:
    """Whether so many bytes of memory may have been at the limit; also if the host can't measure them."""
    return not 0 < peak < limit - max(limit // _NEAR_PART, _NEAR)


class Leaf(Protocol):
    """The group of one job. What only some drivers do does nothing here."""

    shared: bool = False  # others' processes are in it, too
    needs_ticks: bool  # `usage` returns the figures of the last `tick`; False if the kernel counts

    @property
    def tick_interval(self) -> float:
        """Seconds until the next call of `tick`, while a job runs."""

    def armed(self) -> None:
        """
        Give the leaf a job's share of the processor from now on: its runner is ready, or a job waits for the runner. May
        be called again.
        """
        return

    def lower_priority(self) -> None:
        """Lower the leaf's share until the next `armed`: its job has been answered, and nothing waits for its end."""
        return

    @property
    def entry(self) -> Entry:
        """The entry for the job's first process; see the docstring of this module."""

    def apply(self, limits: Limits) -> None:
        """
        Set those of *limits* that differ from the limits in force, right before `rlimits` are set from outside.
        LeewardError, OSError if one can't be set, or the job has gone.
        """

    def rlimits(self) -> Mapping[int, int]:
        """Resource limits, RLIMIT_* to value, that the job must set, because no controller limits the resource."""
        return {}

    @property
    def only(self) -> int:
        """The pid of the job's only process at the last look; 0 if there were others, or nothing looks."""
        return 0

    def cpu(self) -> int | None:
        """The processor that the job must be pinned to, or None if a controller limits its processor time."""
        return None

    def usage(self) -> Usage:
        """The resources that the job has used so far. The figures stay when the processes have gone."""

    def unseen_kills(self) -> int:
        """Processes that the OOM killer has ended so far and `usage` doesn't show; they may be others'."""
        return 0

    def killed_unseen(self, most: int, since: int = -1) -> bool | None:
        """
        None unless `unseen_kills` has risen above *since*, or since `armed`. Then whether the job was at its own limit:
        *most* are the bytes that one of its processes had at once, or 0.
        """
        return None

    def memory(self) -> int:
        """The bytes of memory that the job has now; 0 if that can't be measured."""

    def cpu_time(self) -> float:
        """Seconds of processor time that the job has used so far."""
        return self.usage().cpu_time

    def gauges(self) -> Gauges | None:
        """The files with the figures of `usage`, if the kernel counts all of them; else None."""
        return None

    def saw(self, memory_peak: int) -> None:
        """Note that the fast path has looked, where `usage` is of looks, and saw so many bytes of memory at the most."""
        return

    def glanced(self, seen: JobSeen) -> bool:
        """In place of a `tick`: C has seen all of the job, within its limit. Returns False if a whole look is needed."""
        return False

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets,
             charged: int = 0) -> Limit | None:
        """
        Enforce the limits that the kernel doesn't enforce; return the limit that the job has exceeded, for which the
        caller must end it. If the leaf `needs_ticks`, also call this once when a runner is armed, before its job starts,
        and once before the job's processes end.

        Args:
            init_pid: the pid of the sandbox's init in the daemon's pid namespace.
            files_fd: a descriptor on the job's writable file system, or -1.
            sockets: counts the job's sockets, because no resident set shows their buffers.
            charged: bytes of shared mappings without a file that the job was granted.
        """

    def ended(self, spent: float) -> None:
        """
        Note that the job's processes have gone. *spent* are the processor seconds of all that its init has reaped, for a
        driver for which the kernel doesn't count them.
        """
        return

    def share(self) -> None:
        """
        Note that the leaf belongs to a live sandbox from now on: if one of its processes is ended because memory ran
        out, the others live on, if the driver supports that.
        """
        return

    def rest(self) -> None:
        """Close descriptors that aren't needed now. The leaf opens them again when they are needed."""
        return

    def nest(self, name: str) -> GroupNest | None:
        """
        Make a group in the leaf for one more process and its descendants, which `remove` removes, too; None if the driver
        has no such groups. KernelRefusal if nothing was made.
        """
        return None

    def joined(self, pid: int) -> None:
        """Note that *pid*, in the daemon's pid namespace, is a process of the sandbox that isn't below its init."""
        return

    def parted(self, pid: int, spent: float) -> None:
        """Note that *pid* of `joined` has ended, after *spent* processor seconds with the children that it waited for."""
        return

    def kill(self) -> None:
        """Send SIGKILL to every process in the leaf. Returns before they have gone."""

    def is_there(self) -> bool:
        """Whether the group exists: another program on the host may have removed it while it was empty."""
        return True

    def remove(self) -> bool:
        """
        Give the leaf back: it is removed and its descriptors are closed, or its empty group is kept for a later job of
        this worker. False while a process is in it, or a dead one hasn't left it yet: call again later.
        """
        return True


class WorkerGroup(Protocol):
    """The group of one worker: its keeper, and one leaf per job."""

    @property
    def keeper(self) -> Entry:
        """The entry for the keeper, and by inheritance for the init of each sandbox."""

    def leaf(self, sequence: int, limits: Limits, *, patient: bool = False) -> Leaf:
        """
        Make the group of the worker's job number *sequence*; KernelRefusal if nothing was made. If *patient*, nothing
        waits for its runner: until it is `armed` it gets a small share of the processor where others compete for it.
        """

    @property
    def processors(self) -> tuple[int, ...]:
        """The processors that the keeper, and so all its jobs, are bound to; () for all, or for one by `Leaf.cpu`."""
        return ()

    def rest(self) -> None:
        """Release what is kept for further leaves, since none is made for a while."""
        return

    def remove(self) -> bool:
        """Remove the groups of the worker, as `Leaf.remove` does for a leaf. The leaves must have been removed before."""
        return True


class Driver(Protocol):
    name: str       # "v2", "v1" or "none"
    degraded: bool  # no controller holds the limits
    #: The kernel counts all of a job's memory, also what is in no process's resident set. If not, seccomp must refuse the
    #: calls that make such memory.
    memory_counted: bool
    affinity_fixed: bool  # the affinity holds the processor limit, so a job must not change it
    passed_over: tuple[tuple[str, str], ...]  # the drivers that were tried before, each with the reason against it
    worker_descriptors: int   # those that a worker's group holds open, without those of its leaves
    leaf_descriptors: int     # those that a leaf holds open, at most
    resting_descriptors: int  # those that a worker's group and one leaf hold after `rest` of both
    kept_leaves: int          # leaves without a job that a worker keeps for its next jobs, at most

    @property
    def detail(self) -> Mapping[str, str]:
        """Facts about the driver that `leeward status` shows."""

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> WorkerGroup:
        """
        Make the group of the worker in *slot*, whose keeper has the host uid *owner_uid*. *limits* are the defaults, which
        apply to most jobs.
        """

    def limit_leaves(self, most: int) -> None:
        """Bound the leaves that each later worker has at once, with those that are kept for a later job; 0 for no bound."""
        return

    def sweep(self) -> int:
        """
        Remove the groups of dead daemons of this user; return the number of these daemons. A group whose processes are
        still dying stays for the next sweep.
        """
        return 0

    def close(self) -> None:
        """Remove all groups that the driver made, which the caller has emptied, and undo its changes to other groups."""
        return


def processors_in_turn() -> tuple[int, ...]:
    """
    The processors of this process, in the order in which workers are pinned to them by their slots, where no controller
    bounds processor time. The first one is chosen at random: the worker in slot 0 has most jobs, and those of all daemons
    of a host would compete for one processor.
    """
    processors = sorted(os.sched_getaffinity(0))
    first = int.from_bytes(os.urandom(4), "big") % len(processors)
    return (*processors[first:], *processors[:first])


def processors_of(slot: int, limits: Limits, processors: Sequence[int]) -> tuple[int, ...]:
    """Those of *processors* for the worker in *slot*: as many whole ones as the limit is worth, and one at least."""
    count = max(1, min(len(processors), limits.cpu // 100))
    return tuple(processors[(slot + each) % len(processors)] for each in range(count))
