"""
The plan of a worker: all decisions of the daemon about its zygote, keeper and runners.

Runs in:   the daemon makes the plan and sends it once to the zygote, in two parts; keeper and runner read it.
Holds:     no secret. A job can read the memory that holds the plan.

The first part is known as soon as the interpreter is. With it the zygote warms up, while the daemon decides the second
part: filter, view, rules. No keeper is made before the zygote has both.
"""

from __future__ import annotations

from leeward.base.dataclass import dataclass
from leeward.isolation.egress_route import EgressPlan
from leeward.isolation.landlock import LandlockPlan
from leeward.spec.sandbox import Bind, Scratch, View

_NOTHING = View((), (), (), Scratch(()))


@dataclass(frozen=True, slots=True)
class ZygotePlan:
    """The first part of the plan, with which a zygote starts."""

    import_path: tuple[str, ...]  # `sys.path` for leeward and its dependencies; removed once they are imported
    preload: tuple[str, ...]
    bare: bool                    # no site-packages at all, since no python_env was given
    executable: str
    environment: tuple[tuple[str, str], ...]
    rehearse: bool = True         # find the pages that every job writes; see crossing/scout.py
    warm: bool = True             # prepare for many jobs: for one (`leeward run`) that costs more than it saves
    view: View = _NOTHING         # the jobs' view, of which the zygote's own root is made (backstage.py)
    modules: tuple[Bind, ...] = ()       # leeward's own and their dependencies, which the zygote's root has as well
    idle_threads: tuple[str, ...] = ()   # those that libraries leave, and the zygote ends (spec/libraries.py)
    alone: tuple[tuple[str, str], ...] = ()  # its own variables, by which libraries start none


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The second part of the plan: the locks of a worker's jobs."""

    uid: int  # user and group id inside the sandbox
    gid: int
    hostname: str
    view: View
    scratch_bytes: int  # the size of the tmpfs behind the writable folders
    rlimits: tuple[tuple[int, int, int], ...]  # number as in `resource`, soft, hard
    landlock: LandlockPlan  # with ABI 0 if Landlock is missing and the operator has allowed that
    seccomp: bytes          # the job's filter, 8 bytes an instruction
    init_seccomp: bytes
    #: No cgroup counts memory, so the daemon watches it: huge pages are off, since it counts page faults, and it gets a
    #: descriptor of the job's tmpfs for fstatfs(2).
    watched: bool = False
    bounds_watches: bool = False  # the keeper bounds inotify, so that the supervisor may allow it
    loopback: bool = False   # jobs may use TCP and UDP
    low_ports: bool = False  # also on ports below 1024
    enterable: bool = False  # the daemon gets the descriptors to start more processes in a runner's sandbox
    terminal_seccomp: bytes = b""  # the filter of processes on a terminal, if `enterable`
    rehearse: bool = True
    reuse: bool = False  # runners may follow each other in one's namespaces
    warm: bool = False  # the daemon sends each interpreter the state to begin with, or that there is none
    egress: EgressPlan | None = None  # the listeners that the keeper opens for the daemon, and the routes to them
