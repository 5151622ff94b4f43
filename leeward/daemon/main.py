"""
The daemon, put together: socket, engine, server, signals.

Runs in:   the daemon.

Theory of operation. Everything happens on the reactor's thread, signals among it. The
first of SIGTERM, SIGINT, SIGHUP or a client's `shutdown` drains: clients are still
served, new jobs are refused as shutting down, running ones have DRAIN_S. Then replies
are flushed, the socket goes away, and the workers with it. A second signal cuts the
drain short; one that comes while the engine starts ends the start.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable

import structlog

from leeward import __version__
from leeward.daemon.config import Config
from leeward.daemon.listener import Listener
from leeward.daemon.log import set_up
from leeward.daemon.server import Server
from leeward.daemon.signals import Signals
from leeward.daemon.status import status
from leeward.pool.engine import Engine, Settings
from leeward.spec.paths import default_socket
from leeward.worker.reactor import Reactor

#: Seconds that running jobs have after a SIGTERM. With what follows, all is over within 5.
DRAIN_S = 4.0
#: Seconds that clients have to take their last replies.
FLUSH_S = 0.3
#: Descriptors that the daemon may open, where the host's hard limit allows. Each worker
#: has about ten, each connection one.
DESCRIPTORS = 65536

log = structlog.get_logger("leeward.daemon")


def settings(config: Config) -> Settings:
    """
    What the engine needs of *config*.
    """
    return Settings(
        pool_size=config.pool_size, spares=config.spares, recycle_after=config.recycle_after,
        queue_size=config.queue_size, limits=config.limits, python_env=config.python_env,
        preload=config.preload, allow_degraded=config.allow_degraded,
    )


class Interrupted(Exception):
    """
    Told to end before there was anything to drain.
    """


class Daemon:
    """
    One daemon, from its socket to its end.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._reactor = Reactor()
        self._started = time.monotonic()
        self._ending = False

    def run(self, ready: Callable[[], None]) -> None:
        """
        Serve until told to end; *ready* is called when the first job can be taken.

        Raises:
            LeewardError: the socket's place can't be used, or a layer can't be set.
        """
        config = self._config
        own = default_socket(os.environ, os.geteuid())
        listener = Listener(config.socket, own_folder=config.socket == own)
        if listener.folder_mode & 0o077:
            folder = os.path.dirname(os.path.abspath(config.socket))
            log.warning("socket folder open to others", folder=folder, mode=f"{listener.folder_mode:04o}",
                        cure=f"chmod 0700 {folder}")
        try:
            signals = Signals(self._reactor, self._on_signal)
            try:
                self._serve(listener, ready)
            finally:
                signals.close()
        finally:
            listener.close()
            self._reactor.close()

    def _serve(self, listener: Listener, ready: Callable[[], None]) -> None:
        engine = self._engine = Engine(self._reactor, settings(self._config), log)
        try:
            engine.start()
        except Interrupted:
            engine.close()
            log.info("ended while it started")
            return
        try:
            server = self._server = Server(self._reactor, engine.pool, self._config, status=self._status,
                                           shut_down=self._shut_down, uid=os.geteuid())
            try:
                server.listen(listener.socket)
                # What is here stays: the collector, which stops everything, leaves it alone from now on.
                gc.collect()
                gc.freeze()
                ready()
                log.info("ready", version=__version__, pid=os.getpid(), socket=self._config.socket,
                         workers=self._config.pool_size, degraded=list(engine.degraded))
                self._reactor.run()
                give_up = time.monotonic() + FLUSH_S
                while not server.flushed and time.monotonic() < give_up:
                    self._reactor.turn(0.05)
            finally:
                server.close()
                # Before the workers, which may take a moment: whoever starts a daemon now
                # finds the place free, and whoever connects is told at once.
                listener.close()
        finally:
            engine.close()
            log.info("ended")

    def _status(self) -> dict[str, object]:
        return status(self._engine.status(), transport="socket", connections=len(self._server.connections),
                      uptime=time.monotonic() - self._started)

    # --- the end --------------------------------------------------------------

    def _on_signal(self, name: str) -> None:
        log.info("signal", name=name)
        self._shut_down()

    def _shut_down(self) -> None:
        if self._ending:
            self._reactor.stop()
            return
        self._ending = True
        if not hasattr(self, "_server"):
            raise Interrupted  # through the reactor, out of engine.start
        log.info("draining", seconds=DRAIN_S)
        self._engine.drain(DRAIN_S, self._reactor.stop)


def run(config: Config, ready: Callable[[], None] = lambda: None) -> None:
    """
    Be the daemon that *config* describes, until told to end.

    Raises:
        LeewardError: it can't start; nothing is left behind.
    """
    set_up(config.log_level, config.log_json)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    Daemon(config).run(ready)
