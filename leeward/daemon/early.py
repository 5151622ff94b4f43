"""
What a daemon does before it imports the rest of itself: it starts its zygote, which warms up meanwhile.

Runs in:   the daemon, and `leeward run`, first of all.
"""

from __future__ import annotations

import gc
import os
import resource
import signal

from leeward.daemon.config import Config, quotas
from leeward.pool.begin import Begun, Settings, begin

#: Descriptors that the daemon may open, where the host's hard limit allows. Each worker
#: has about ten, each connection one.
DESCRIPTORS = 65536
#: Those that ask for the end.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start(settings: Settings) -> Begun:
    """
    Begin what *settings* describe. Whatever asks for the end waits from now on until `signals.Signals` hears it:
    it would leave groups behind. The garbage collector waits, too, until somebody enables it.

    Raises: as `begin`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    gc.disable()  # what is imported stays, so looking through it again and again finds nothing
    try:
        room_for_descriptors()
        return begin(settings)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        raise


def room_for_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def settings(config: Config) -> Settings:
    """
    What the engine needs of *config*.
    """
    return Settings(
        pool_size=config.pool_size, spares=config.spares, recycle_after=config.recycle_after,
        queue_size=config.queue_size, limits=config.limits, python_env=config.python_env,
        preload=config.preload, allow_degraded=config.allow_degraded, quotas=quotas(config, os.geteuid()),
        rehearse=config.rehearse, results=config.results, max_sessions=config.max_sessions,
    )
