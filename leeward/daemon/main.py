"""
The daemon, put together: socket, engine, server, signals, metrics, the service manager.

Runs in:   the daemon.

Theory of operation. Everything happens on the reactor's thread, signals among it. The
first of SIGTERM, SIGINT or a client's `shutdown` drains: clients are still
served, new jobs are refused as shutting down, running ones have DRAIN_S. Then replies
are flushed, the socket goes away, and the workers with it. A second signal cuts the
drain short; one that comes while the engine starts ends the start.

A socket that a service manager gave us stays when we go. Then draining also means to accept nobody
and to take no new request: who connects or sends meanwhile is the next daemon's client.

SIGHUP reads the configuration again, unless it says that the terminal has gone that we were started
on: then it ends the daemon as SIGTERM does.
"""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable

from leeward import __version__, dataclass
from leeward.daemon import early
from leeward.daemon.config import Config, group_id, live, quotas
from leeward.daemon.exporter import Exporter, bind
from leeward.daemon.listener import Inherited, Listener
from leeward.daemon.log import log
from leeward.daemon.metrics import Metrics, Now
from leeward.daemon.observer import Observer
from leeward.daemon.server import Server
from leeward.daemon.signals import Signals
from leeward.daemon.status import status
from leeward.daemon.systemd import Manager
from leeward.errors import BadRequest, LeewardError
from leeward.pool.begin import Begun
from leeward.pool.engine import Engine
from leeward.pool.memory import memory_of
from leeward.spec.paths import default_socket
from leeward.worker.native import reactor_for

#: Seconds that running jobs have after a SIGTERM. With what follows, all is over within 5.
DRAIN_S = 4.0
#: Seconds that clients have to take their last replies, and at least until so long after we were told to end: who
#: has just connected, on a host that has no time to spare, sends his request later than one may think.
FLUSH_S, SETTLE_S = 0.3, 2.0
#: Workers whose memory is looked up before requests have their turn again: some 20 us each.
_TURN_WORKERS = 16



class Interrupted(Exception):
    """
    Told to end before there was anything to drain.
    """


class Daemon:
    """
    One daemon, from its socket to its end.

    Args:
        load: reads the configuration again.
        manager: who started us.
        begun: what was done before, if anything was.
    """

    def __init__(self, config: Config, load: Callable[[], Config], manager: Manager, begun: Begun | None) -> None:
        self._begun = begun
        self._config = config
        self._load = load
        self._manager = manager
        # The short way answers inline.
        self._reactor = reactor_for(config.io, express=config.express and config.results != "memfd")
        self._started = time.monotonic()
        self._ending = False
        self._told = 0.0  # when we were told to end
        self._metrics = Metrics()
        self._terminal = has_terminal()

    def run(self, ready: Callable[[], None]) -> None:
        """
        Serve until told to end; *ready* is called when the first job can be taken.

        Raises:
            LeewardError: the socket's place can't be used, or a layer can't be set.
        """
        config = self._config
        given = self._manager.listener()
        listener = self._listener = self._place(config.socket, group_id(config)) if given is None else Inherited(given)
        try:
            signals = Signals(self._reactor, self._on_signal)
            try:
                self._serve(listener, ready)
            finally:
                signals.close()
        finally:
            listener.close()
            self._reactor.close()

    def _place(self, path: str, group: int | None) -> Listener:
        """
        A socket at *path*, with a word to the log if others see its folder.
        """
        listener = Listener(path, own_folder=path == default_socket(os.environ, os.geteuid()), group=group)
        if listener.folder_mode & (0o077 if group is None else 0o027):
            folder = os.path.dirname(os.path.abspath(path))
            log.warning("socket folder open to others", folder=folder, mode=f"{listener.folder_mode:04o}",
                        cure=f"chmod {'0700' if group is None else '0710'} {folder}")
        return listener

    def _serve(self, listener: Listener | Inherited, ready: Callable[[], None]) -> None:
        observer = self._observer = Observer(self._reactor, self._metrics, self._config.security_log)
        try:
            engine = self._engine = Engine(self._reactor, early.settings(self._config), log, observer, self._begun)
            try:
                engine.start(_tidy)
            except Interrupted:
                engine.close()
                log.info("ended while it started")
                return
            self._run(engine, listener, ready)
        finally:
            observer.close()

    def _run(self, engine: Engine, listener: Listener | Inherited, ready: Callable[[], None]) -> None:
        try:
            server = self._server = Server(
                self._reactor, engine.pool, self._config, status=self._status, shut_down=self._shut_down,
                uid=os.geteuid(), group=group_id(self._config), quotas=quotas(self._config, os.geteuid()),
                metrics=self._metrics, watcher=self._observer)
            stop_exporting = self._export()
            try:
                server.listen(listener.socket)
                # What is here stays: the collector, which stops everything, leaves it alone from now on.
                gc.freeze()
                gc.enable()  # `early.start` may have put it off
                ready()
                if self._reactor.refused:
                    log.info("no io_uring: clients are served by epoll", why=self._reactor.refused)
                log.info("ready", version=__version__, pid=os.getpid(), socket=listener.path,
                         workers=self._config.pool_size, degraded=list(engine.degraded),
                         transport=self._reactor.transport)
                self._manager.ready(f"serving on {listener.path}")
                self._beat()
                self._reactor.run()
                give_up = max(time.monotonic() + FLUSH_S, self._told + SETTLE_S)
                while not server.flushed and time.monotonic() < give_up:
                    self._reactor.turn(0.05)
            finally:
                stop_exporting()
                server.close()
                # Before the workers, which may take a moment: whoever starts a daemon now
                # finds the place free, and whoever connects is told at once.
                listener.close()
        finally:
            engine.close()
            log.info("ended")

    def _status(self) -> dict[str, object]:
        return status(self._engine.status(), transport=self._reactor.transport,
                      connections=len(self._server.connections), uptime=time.monotonic() - self._started,
                      pid=os.getpid())

    def _beat(self) -> None:
        """
        Show the service manager that the loop turns, twice in the time that it gives.
        """
        if self._manager.watchdog:
            self._manager.alive()
            self._reactor.after(self._manager.watchdog / 2, self._beat)

    # --- metrics --------------------------------------------------------------

    def _export(self) -> Callable[[], None]:
        """
        Serve metrics where the configuration says; returns what ends it.

        Raises:
            BadRequest: it can't be listened there.
        """
        place = self._config.metrics
        if not place:
            return lambda: None
        listener: Listener | socket.socket
        if place.startswith("/"):
            listener = self._place(place, None)
            sock = listener.socket
        else:
            try:
                listener = sock = bind(place)
            except OSError as error:
                raise BadRequest(f"metrics {place}: {(error.strerror or str(error)).lower()}") from None
        exporter = Exporter(self._reactor, sock, self._collect)
        log.info("metrics", place=place, address=str(sock.getsockname()))

        def stop() -> None:
            exporter.close()
            listener.close()
        return stop

    def _collect(self, done: Callable[[str], None]) -> None:
        """
        Put the text together, with a look at each worker, and hand it to *done*.
        """
        pool = self._engine.pool
        workers = list(pool.workers)
        memory: dict[int, int] = {}

        def look() -> None:
            for worker in workers[:_TURN_WORKERS]:
                memory[worker.slot] = memory_of(worker)
            del workers[:_TURN_WORKERS]
            if workers:
                self._reactor.soon(look)
                return
            counts = pool.states()
            done(self._metrics.text(Now(
                workers=counts, memory=dict(sorted(memory.items())), recycles=pool.recycled,
                connections=len(self._server.connections), queued=pool.queued, runners_made=pool.runners_made,
                uptime=time.monotonic() - self._started)))
        look()

    # --- reload ---------------------------------------------------------------

    def _reload(self) -> None:
        """
        Take over what has changed in the configuration, as far as that goes while we run.
        """
        self._manager.reloading()
        try:
            config, left = live(self._config, self._load())
            self._observer.open(config.security_log)
        except (LeewardError, OSError) as error:  # of a folder that has gone, say
            log.error("configuration not reloaded: what was in force stays", error=str(error))
        else:
            self._config = self._server.config = config
            log.adjust(config.log_level, config.log_json)
            self._server.govern(quotas(config, os.geteuid()))
            self._engine.pool.govern(self._server.quotas, config.queue_size, config.max_sessions)
            log.info("configuration reloaded")
            if left:
                log.warning("changes that need a restart", keys=left)
        self._manager.ready(f"serving on {self._listener.path}")

    # --- the end --------------------------------------------------------------

    def _on_signal(self, name: str) -> None:
        log.info("signal", name=name)
        if "SIGHUP" == name and not (self._terminal and not has_terminal()):
            if hasattr(self, "_server") and not self._ending:
                self._reload()  # else it is just being read, or not needed any more
            return
        self._shut_down()

    def _shut_down(self) -> None:
        if self._ending:
            self._reactor.stop()
            return
        self._ending, self._told = True, time.monotonic()
        if not hasattr(self, "_server"):
            raise Interrupted  # through the reactor, out of engine.start
        log.info("draining", seconds=DRAIN_S)
        self._manager.stopping("draining")
        if self._listener.kept:
            self._server.part()
        self._engine.drain(DRAIN_S, self._reactor.stop)


def _tidy() -> None:
    """
    Do what the first clients would have to wait for.
    """
    dataclass.prepare()
    gc.collect()


def has_terminal() -> bool:
    """
    Is there a terminal that controls us? One that was hung up isn't there any more.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def run(config: Config, ready: Callable[[], None] = lambda: None, load: Callable[[], Config] | None = None,
        begun: Begun | None = None) -> None:
    """
    Be the daemon that *config* describes, until told to end.

    Args:
        load: reads the configuration again, on SIGHUP.
        begun: what `early.start` gave, if it was called.

    Raises:
        LeewardError: it can't start; nothing is left behind.
    """
    manager = Manager(os.environ, os.getpid())
    log.set_up(config.log_level, config.log_json, journal_stream=os.environ.get("JOURNAL_STREAM", ""))
    early.room_for_descriptors()
    try:
        Daemon(config, load or (lambda: config), manager, begun).run(ready)
    finally:
        if begun is not None:
            begun.close()
        manager.close()
