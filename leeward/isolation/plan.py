"""
The plan of a worker: everything that zygote, keeper and runner have to do, decided beforehand.

Runs in:   made in the daemon; sent once to the zygote, in two parts; read by keeper and runner.
Holds:     no secret. A job can read the memory in which this lies.

The first part is known as soon as the interpreter is. The zygote warms up by it while the daemon decides the
second: filter, view, rules. No keeper is made without that one.
"""

from __future__ import annotations

from leeward.dataclass import dataclass
from leeward.isolation.landlock import LandlockPlan
from leeward.spec.sandbox import View


@dataclass(frozen=True, slots=True)
class ZygotePlan:
    """
    What a zygote needs to begin.

    Attributes:
        import_path: where leeward and what it imports lie; only until they are imported.
        unprivileged: give up root's groups and capabilities first; the daemon runs as root.
        bare: no site-packages at all, since no python_env was given.
        rehearse: find out what every job writes.
        warm: many jobs will come of it; for one, what makes each cheaper isn't worth it.
    """

    import_path: tuple[str, ...]
    unprivileged: bool
    preload: tuple[str, ...]
    bare: bool
    executable: str
    environment: tuple[tuple[str, str], ...]
    rehearse: bool = True
    warm: bool = True


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """
    Attributes:
        uid: user and group id inside.
        scratch_bytes: size of the tmpfs behind the writable folders.
        rlimits: number as in `resource`, soft, hard.
        landlock: of ABI 0 where the operator allowed to go without it.
        seccomp: the job's filter, 8 bytes an instruction.
        init_seccomp: the init's.
        watched: no cgroup counts memory, the daemon does: huge pages are off, since it counts page
            faults, and it is given a descriptor to ask the job's tmpfs how full it is.
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
    rehearse: bool = True
