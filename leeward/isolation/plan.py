"""
The plan of a worker: all decisions of the daemon about its zygote, keeper and runners.

Runs in:   the daemon makes the plan and sends it once to the zygote, in two parts; keeper and runner read it.
Holds:     no secret. A job can read the memory that holds the plan.

The first part is known as soon as the interpreter is. With it the zygote warms up, while the daemon decides the
second part: filter, view, rules. No keeper is made before the zygote has both.
"""

from __future__ import annotations

from leeward.dataclass import dataclass
from leeward.isolation.egress import EgressPlan
from leeward.isolation.landlock import LandlockPlan
from leeward.spec.sandbox import Bind, Scratch, View

_NOTHING = View((), (), (), Scratch(()))


@dataclass(frozen=True, slots=True)
class ZygotePlan:
    """
    The first part of the plan, with which a zygote starts.

    Attributes:
        import_path: `sys.path` for leeward and its dependencies; removed once they are imported.
        bare: no site-packages at all, since no python_env was given.
        rehearse: find the pages that every job writes; see crossing/scout.py.
        warm: prepare for many jobs. For a single one (`leeward run`) the preparation costs more than it saves.
        view: the jobs' view, of which the zygote's own root is made (backstage.py).
        idle_threads: names of threads that libraries leave running, and that the zygote ends (spec/libraries.py).
        modules: binds of leeward's own modules and their dependencies, which the zygote's root has as well.
    """

    import_path: tuple[str, ...]
    preload: tuple[str, ...]
    bare: bool
    executable: str
    environment: tuple[tuple[str, str], ...]
    rehearse: bool = True
    warm: bool = True
    view: View = _NOTHING
    modules: tuple[Bind, ...] = ()
    idle_threads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """
    The second part of the plan: the locks of a worker's jobs.

    Attributes:
        uid: user and group id inside the sandbox.
        scratch_bytes: size of the tmpfs behind the writable folders.
        rlimits: number as in `resource`, soft, hard.
        landlock: the ruleset; with ABI 0 if Landlock is missing and the operator has allowed that.
        seccomp: the job's filter, 8 bytes an instruction.
        init_seccomp: the init's filter.
        watched: no cgroup counts memory, so the daemon watches it: huge pages are off, since it counts page
            faults, and it gets a descriptor of the job's tmpfs for fstatfs(2).
        loopback: jobs may use TCP and UDP.
        egress: the listeners that the keeper opens and sends to the daemon, and the routes to them; None for no egress.
        enterable: the daemon gets the descriptors that it needs to start more processes in a runner's sandbox.
        terminal_seccomp: the filter of processes on a terminal, if *enterable*.
    """

    uid: int
    hostname: str
    view: View
    scratch_bytes: int
    rlimits: tuple[tuple[int, int, int], ...]
    landlock: LandlockPlan
    seccomp: bytes
    init_seccomp: bytes
    watched: bool = False
    loopback: bool = False
    enterable: bool = False
    terminal_seccomp: bytes = b""
    rehearse: bool = True
    egress: EgressPlan | None = None
