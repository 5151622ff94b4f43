"""The first steps of a daemon: it starts its zygote, which warms up while the daemon imports its other modules."""

from __future__ import annotations

import gc
import os
import resource
import signal

from leeward.base.dataclass import names
from leeward.base.points import point
from leeward.daemon.config import Config, quotas
from leeward.daemon.descriptors import limit
from leeward.daemon.pool.begin import Bootstrap, Settings, begin
from leeward.errors import Unsupported
from leeward.spec.limits import LEAST_DESCRIPTORS

#: Signals that end the daemon.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start(settings: Settings) -> Bootstrap:
    """
    Start the zygote that *settings* describe; raises as `begin`. The signals in ENDING stay blocked until
    `ending.Signals` handles them, as one would leave cgroups behind, and the garbage collector is off until the caller
    enables it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    gc.disable()  # imported modules stay, so the collector would find nothing to free among them
    try:
        room_for_descriptors()
        return begin(settings)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        raise


def room_for_descriptors() -> None:
    """Raise the soft limit on descriptors to the hard limit, at most MOST; Unsupported if that is below LEAST_DESCRIPTORS."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit() < LEAST_DESCRIPTORS:
        raise Unsupported("descriptors", have=f"a hard limit of {hard} (RLIMIT_NOFILE)",
                          need=f"{LEAST_DESCRIPTORS} or more",
                          cure="raise it (ulimit -Hn, LimitNOFILE= of a service)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit(), hard))


@point("daemon.settings")
def settings(config: Config) -> Settings:
    # All that both have by one name, but for the policies of egress: an engine's is that of its jobs.
    same = {*names(Settings)} & {*names(Config)} - {"egress"}
    return Settings(quotas=quotas(config, os.geteuid()), **{name: getattr(config, name) for name in same})
