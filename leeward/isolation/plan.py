"""
The plan of a worker: everything that zygote, keeper and runner have to do, decided in the daemon.

Runs in:   made in the daemon; sent once to the zygote, in two parts; read by keeper and runner.
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
    What a zygote needs to begin.

    Attributes:
        import_path: `sys.path` for leeward and its dependencies; removed once they are imported.
        bare: no site-packages at all, since no python_env was given.
        rehearse: find the pages that every job writes; see crossing/scout.py.
        warm: prepare for many jobs. For a single one (`leeward run`) the preparation costs more than it saves.
        view: of the jobs; the zygote's own root is made of it (backstage.py).
        idle_threads: names of threads that libraries leave behind, and that are ended (spec/libraries.py).
        modules: leeward's own, and what they need, which that root has as well.
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
    Attributes:
        uid: user and group id inside.
        scratch_bytes: size of the tmpfs behind the writable folders.
        rlimits: number as in `resource`, soft, hard.
        landlock: with ABI 0 if Landlock is missing and the operator allowed that.
        seccomp: the job's filter, 8 bytes an instruction.
        init_seccomp: the init's filter.
        watched: no cgroup counts memory, so the daemon watches it: huge pages are off, since it counts page
            faults, and it gets a descriptor of the job's tmpfs for fstatfs(2).
        loopback: jobs may use TCP and UDP.
        egress: every address leads to listeners that the keeper opens and hands to the daemon.
        enterable: the daemon gets what it needs to put more processes beside a runner's first.
        terminal_seccomp: the filter of those that are on a terminal; where *enterable*.
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
