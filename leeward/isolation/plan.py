"""
The plan of a worker: everything that zygote, keeper and runner have to do, decided beforehand.

Runs in:   made in the daemon; sent once to the zygote; read by keeper and runner.
Holds:     no secret. A job can read the memory in which this lies.
"""

from __future__ import annotations

from leeward.dataclass import dataclass
from leeward.isolation.landlock import LandlockPlan
from leeward.spec.sandbox import View


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """
    Attributes:
        import_path: where leeward and what it imports lie; only until they are imported.
        control: the number of the zygote's end of its control channel.
        unprivileged: give up root's groups and capabilities first; the daemon runs as root.
        uid: user and group id inside.
        scratch_bytes: size of the tmpfs behind the writable folders.
        rlimits: number as in `resource`, soft, hard.
        landlock: of ABI 0 where the operator allowed to go without it.
        seccomp: the job's filter, 8 bytes an instruction.
        init_seccomp: the init's.
        watched: no cgroup counts memory, the daemon does: huge pages are off, since it counts page
            faults, and it is given a descriptor to ask the job's tmpfs how full it is.
        bare: no site-packages at all, since no python_env was given.
    """

    import_path: tuple[str, ...]
    control: int
    unprivileged: bool
    uid: int
    hostname: str
    view: View
    scratch_bytes: int
    rlimits: tuple[tuple[int, int, int], ...]
    landlock: LandlockPlan
    seccomp: bytes
    init_seccomp: bytes
    preload: tuple[str, ...]
    bare: bool
    executable: str
    environment: tuple[tuple[str, str], ...]
    watched: bool = False
    rehearse: bool = True
