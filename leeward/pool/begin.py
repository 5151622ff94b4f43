"""
The first steps of an engine: where the limits come from, what jobs see, and a zygote that warms up.

Runs in:   the daemon, and `leeward run`. Imports little: a daemon takes these steps before it imports the rest of
           itself, so that both are done at the same time.
"""

from __future__ import annotations

import os
import resource

from leeward._native import privileges
from leeward.dataclass import dataclass, field
from leeward.isolation import interpreter, landlock
from leeward.isolation.cgroup.choose import choose
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.plan import ZygotePlan
from leeward.pool.quotas import Quotas
from leeward.spec import profiles
from leeward.spec.limits import Limits
from leeward.spec.sandbox import SandboxSpec
from leeward.worker.hatch import Hatched, import_path


@dataclass(frozen=True, slots=True)
class Settings:
    """
    What an engine is told. `daemon.config` documents each; its defaults are there, too.

    Attributes:
        warm: the zygote imports what most programs import. For one job that is more than it saves.
    """

    pool_size: int = 4
    spares: int = 1
    recycle_after: int = 100
    queue_size: int = 64
    limits: Limits = field(default_factory=Limits)
    python_env: str = ""
    preload: tuple[str, ...] = ()
    allow_degraded: tuple[str, ...] = ()
    cgroup: str | None = None
    quotas: Quotas = field(default_factory=Quotas)
    rehearse: bool = True
    results: str = "auto"
    max_sessions: int = -1
    warm: bool = True


class Begun:
    """
    A driver, what jobs see, and a zygote that warms up for it.
    """

    __slots__ = ("_hatched", "driver", "spec", "zygote_plan")

    def __init__(self, driver: Driver, spec: SandboxSpec, plan: ZygotePlan) -> None:
        self.driver, self.spec, self.zygote_plan = driver, spec, plan
        self._hatched: Hatched | None = Hatched(plan)

    def take(self) -> Hatched:
        """
        The zygote; it and the driver are the caller's from now on.
        """
        assert self._hatched is not None
        hatched, self._hatched = self._hatched, None
        return hatched

    def close(self) -> None:
        """
        Give back what nobody took.
        """
        if self._hatched is not None:
            self.take().end()
            self.driver.close()


def begin(settings: Settings) -> Begun:
    """
    Take the steps for which no other process, and no decision about locks, is needed.

    Raises:
        BadRequest, Unsupported: no interpreter or no driver that could serve.
        OSError: no zygote can be started.
    """
    privileges.be_subreaper()  # orphans of a dead zygote or keeper come to us, and are reaped
    _limits_to_inherit()
    driver = choose(settings.cgroup)  # before the zygote, which is to live where this moves us
    try:
        driver.sweep()
        host = interpreter.find(settings.python_env)
        spec = profiles.python(host, interpreter.root_links(), limits=settings.limits,
                               localtime=interpreter.localtime(), preload=settings.preload, warm=settings.warm,
                               memory_counted=driver.memory_counted, landlocked=landlock.probe() > 0)
        return Begun(driver, spec, ZygotePlan(
            import_path=import_path(), unprivileged=0 == os.geteuid(), preload=spec.preload, bare=not host.env,
            executable=spec.executable, environment=spec.environment, rehearse=settings.rehearse, warm=settings.warm))
    except BaseException:
        driver.close()
        raise


def _limits_to_inherit() -> None:
    """
    What zygote, keepers and jobs start from; a job can only go below it.
    """
    # As many descriptors as we may have. Not for their number alone: who has more descriptors in
    # flight than this limit, over all processes of one user, can't send any. The jobs of an ordinary
    # user's daemon have its user id, and each may have as many in flight as it has descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # No core of ours, which would hold what clients sent, and none of a job's: isolation/rlimits.py says
    # why 1. An ordinary user whose hard limit is 0 already can't have it.
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
