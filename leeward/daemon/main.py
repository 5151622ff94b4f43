"""
The daemon, put together: socket, engine, server, signals, metrics, the service manager.

Theory of operation. Everything happens on the reactor's thread. The first SIGTERM, SIGINT or `shutdown` of a client
starts a drain: clients are still served, new jobs are refused, running jobs have DRAIN_S and are then stopped, which
their results say. Then replies are flushed, requests that came meanwhile are refused, and socket and workers are
removed. A further signal doesn't change the drain; only a `shutdown` that asks for haste does. A signal that comes
while the engine starts ends the start.

A socket of a service manager's stays open for the next daemon. Then a drain also means to accept no connection and read
no new request: the next daemon serves them.

SIGHUP reads the configuration again, unless it reports the end of the daemon's terminal: then it is as SIGTERM.
"""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial

from leeward import __version__
from leeward._native import heap
from leeward.base import dataclass
from leeward.daemon import descriptors, early
from leeward.daemon.config import Config, group_id, jobs_beyond, live, most_listeners, quotas, room
from leeward.daemon.ending import OVERDUE_S, Idle, Signals, drain_s, see_off
from leeward.daemon.loop.barrier import nothing
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.plans import Plans, environments
from leeward.daemon.pool.begin import Bootstrap, begin
from leeward.daemon.pool.branches import memory_of
from leeward.daemon.pool.engine import Engine
from leeward.daemon.pool.watchdog import Standstill, Watchdog
from leeward.daemon.sandboxes.retiring import MOST_S
from leeward.daemon.sandboxes.terms import SandboxTerms, terms_of
from leeward.daemon.serving.listener import Inherited, Listener
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.restoring import restore
from leeward.daemon.serving.server import Server
from leeward.daemon.systemd import Manager
from leeward.daemon.telling.exporter import Exporter, bind
from leeward.daemon.telling.log import log
from leeward.daemon.telling.metrics import Metrics, Now
from leeward.daemon.telling.observer import Observer
from leeward.daemon.worker.worker import Worker
from leeward.errors import SHORT, BadRequest, LeewardError, reason_of
from leeward.isolation.cgroup import hierarchy
from leeward.isolation.cgroup.entry import Driver
from leeward.spec.paths import default_socket

#: Freed blocks of at least this many bytes are returned to the kernel: contents of jobs, not the daemon's own objects.
_LARGE_BLOCK = 1 << 20
#: Workers whose memory is read in one turn of the loop: some 20 us each.
_TURN_WORKERS = 16


class Daemon:
    """One daemon, from its socket to its end; *bootstrap* is a zygote that was started before."""

    def __init__(self, config: Config, load: Callable[[], Config], manager: Manager,
                 bootstrap: Bootstrap | None) -> None:
        self._bootstrap = bootstrap
        self._config = config
        self._load = load
        self._manager = manager
        # The fast path answers inline.
        self._reactor = NativeReactor(config.io, fast_path=config.fast_path and config.results != "memfd")
        self._started = time.monotonic()
        self._ending = False
        self._stop_requested = 0.0  # when we were told to end
        self._reloads = [0, 0]  # taken, refused
        self._metrics = Metrics()
        self._terminal = has_terminal()
        self._idle = Idle(self._reactor, lambda: self._config.idle_exit, self._activity, self._shut_down)

    def _activity(self) -> tuple[int, bool]:
        return self._metrics.requests, any(
            pool.running or len(pool.queue) or pool.sessions or pool.seats for pool in self._engine.pools)

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until the daemon is told to end; *ready* is called when jobs can be taken. LeewardError if it can't start."""
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
            self._reactor.barrier.steps(listener.close, self._reactor.close)

    def _place(self, path: str, group: int | None) -> Listener:
        """Make the socket at *path*, and log a warning if other users see its folder."""
        listener = Listener(path, own_folder=path == default_socket(os.environ, os.geteuid()), group=group)
        if listener.folder_mode & (0o077 if group is None else 0o027):
            folder = os.path.dirname(os.path.abspath(path))
            log.warning("socket folder open to others", folder=folder, mode=f"{listener.folder_mode:04o}",
                        cure=f"chmod {'0700' if group is None else '0710'} {folder}")
        return listener

    def _serve(self, listener: Listener | Inherited, ready: Callable[[], None]) -> None:
        observer = self._observer = Observer(self._reactor, self._metrics, self._config.security_log)
        try:
            settings = early.settings(self._config)
            bootstrap = self._bootstrap or begin(settings)
            try:
                self._divide(bootstrap.driver)
            except LeewardError:
                bootstrap.close()
                raise
            settings = dataclass.replace(settings, sandboxes=self._shares.sandboxes)
            engine = self._engine = Engine(self._reactor, settings, log, observer, bootstrap)
            engine.logs_jobs = self._config.log_jobs
            engine.surplus, engine.room, engine.further = self._shares.surplus, self._shares.room, self._shares.further
            engine.bounds, engine.beyond = self._shares.bounds, self._shares.beyond
            engine.plans, engine.pool_idle = Plans(lambda: self._config, settings), self._config.pool_idle
            if not engine.start():
                engine.close()
                log.info("ended while it started")
                return
            self._run(engine, listener, ready)
        finally:
            self._reactor.barrier.steps(observer.close)

    def _divide(self, driver: Driver) -> None:
        """Divide the descriptors among workers, connections and results; Unsupported if the limit is too low."""
        config = self._config
        memory = hierarchy.memory()
        asked, jobs = room(config, memory), jobs_beyond(config, memory)
        divide = partial(descriptors.shares, driver=driver, workers=config.pool_size,
                         spares=1 if config.fresh_layout else config.spares,  # a zygote takes fewer than a spare
                         asked=config.max_connections, metrics=bool(config.metrics), room=asked,
                         further=config.pool_workers, listeners=most_listeners(config.egress), jobs=jobs)
        shares = divide(descriptors.limit())
        short = (shares.room < asked and config.max_sessions > 0) or (
            shares.beyond.jobs < jobs and config.max_jobs > 0)  # than were asked for
        if short and descriptors.raise_limit():
            shares = divide(descriptors.limit())
        self._shares = shares
        driver.limit_leaves(shares.leaves)
        if shares.room < asked and config.max_sessions > 0:
            log.warning("fewer sessions than max_sessions", sessions=shares.room + config.pool_size // 2,
                        max_sessions=config.max_sessions, limit=shares.limit,
                        cure="raise the hard limit of descriptors (ulimit -Hn, LimitNOFILE=)")
        if shares.beyond.jobs < jobs and config.max_jobs > 0:
            log.warning("fewer jobs at once than max_jobs", jobs=shares.beyond.jobs + config.pool_size,
                        max_jobs=config.max_jobs, limit=shares.limit,
                        cure="raise the hard limit of descriptors (ulimit -Hn, LimitNOFILE=)")
        if shares.connections < config.max_connections:
            log.warning("fewer connections than max_connections", connections=shares.connections,
                        max_connections=config.max_connections, limit=shares.limit, workers=shares.pool,
                        cure="raise the hard limit of descriptors (ulimit -Hn, LimitNOFILE=)")

    def _run(self, engine: Engine, listener: Listener | Inherited, ready: Callable[[], None]) -> None:
        try:
            server = self._server = Server(
                self._reactor, engine.main.pool, self._config, status=self._status, shut_down=self._shut_down,
                users=ServedUsers(os.geteuid(), group_id(self._config), quotas(self._config, os.geteuid())),
                watcher=self._observer, shares=self._shares, terms=self._terms, place=engine.branch)
            server.egress, server.asks = engine.exits.record, engine.exits.asks
            server.desk.seated, server.fetch = engine.exits.seated, engine.exits.fetch
            stop_exporting = self._export()
            try:
                state = self._manager.state
                if folder := self._config.sleep_folder or (state and f"{state}/sleeping"):
                    restore(server, folder, listener.path)
                server.listen(listener.socket)
                # The objects that exist now stay, so the collector needn't look at them again. It isn't run before: it
                # would free 1,400 of 40,000 objects and no page, and take 18 ms of the start.
                gc.freeze()
                gc.enable()  # `early.start` may have put it off
                ready()
                if self._reactor.refused:
                    log.info("no io_uring: clients are served by epoll", why=self._reactor.refused)
                self._reactor.left_ring = _log_the_ring
                log.info("ready", version=__version__, pid=os.getpid(), socket=listener.path,
                         workers=self._config.pool_size, connections=server.places,
                         sessions=engine.main.pool.most_sessions, degraded=list(engine.confinement.degraded),
                         transport=self._reactor.transport)
                self._manager.ready(f"serving on {listener.path}")
                server.desk.opener.begin()
                watchdog = Watchdog(
                    self._reactor, lambda: engine.workers, time=self._config.limits.time, report=_log_standstill,
                    alive=self._manager.alive, period=self._manager.watchdog)
                watchdog.start()
                try:
                    self._idle.watch()
                    self._reactor.run(self._overdue)
                    self._reactor.barrier.steps(
                        partial(see_off, self._reactor, server, self._stop_requested, listener.close))
                finally:
                    watchdog.stop()
            finally:
                self._reactor.barrier.steps(stop_exporting, server.close, listener.close)
        finally:
            engine.close()
            log.info("ended")

    def _overdue(self) -> bool:
        """The drain has taken too long: the callback that reports its end has failed."""
        sleep = MOST_S if self._server.desk.retiring else 0.0
        return self._ending and time.monotonic() > self._stop_requested + max(drain_s(), sleep) + OVERDUE_S

    def _terms(self) -> SandboxTerms:
        return terms_of(self._engine.spec, self._engine.confinement.degraded)

    def _status(self) -> dict[str, object]:
        """The fields of `leeward status`: those of the engine, and the daemon's own."""
        return {**self._engine.status(), "transport": self._reactor.transport, "connections": len(self._server.connections),
                "max_connections": self._server.places, "uptime": round(time.monotonic() - self._started, 3),
                "pid": os.getpid(), "environments": environments(self._config), "reloads": list(self._reloads)}

    # --- metrics --------------------------------------------------------------

    def _export(self) -> Callable[[], None]:
        """Serve metrics where the configuration says, BadRequest if that can't be. Returns the function that ends this."""
        place = self._config.metrics
        if not place:
            return nothing
        listener: Listener | socket.socket
        if place.startswith("/"):
            listener = self._place(place, None)
            sock = listener.socket
        else:
            try:
                listener = sock = bind(place)
            except OSError as error:
                raise BadRequest(f"metrics {place}: {reason_of(error)}") from None
        exporter = Exporter(self._reactor, sock, lambda done: self._count(self._engine.workers, {}, done), self._ailing)
        log.info("metrics", place=place, address=str(sock.getsockname()))

        return partial(self._reactor.barrier.steps, exporter.close, listener.close)

    def _count(self, workers: list[Worker], memory: dict[int, int], done: Callable[[str], None]) -> None:
        """Pass the text of the metrics to *done*, once the memory of all *workers* is in *memory*."""
        for worker in workers[:_TURN_WORKERS]:
            memory[worker.slot] = memory_of(worker)
        if len(workers) > _TURN_WORKERS:
            self._reactor.soon(partial(self._count, workers[_TURN_WORKERS:], memory, done))
            return
        done(self._text(memory))

    def _text(self, memory: Mapping[int, int]) -> str:
        pools, tried = self._engine.pools, self._engine.exits.record
        states = [pool.workforce.states() for pool in pools]
        return self._metrics.text(Now(
            workers={name: sum(each[name] for each in states) for name in states[0]},
            memory={str(slot): size for slot, size in sorted(memory.items())},
            recycles=sum(pool.workforce.recycled for pool in pools), queued=sum(len(pool.queue) for pool in pools),
            runners_made=sum(pool.workforce.runners_made for pool in pools),
            connections=len(self._server.connections), sessions=sum(pool.sessions for pool in pools),
            uptime=time.monotonic() - self._started, egress=tried.verdicts,
            egress_bytes={"sent": tried.sent, "received": tried.received}))

    def _ailing(self) -> str:
        """Return the reason why the daemon takes no jobs now, or "", for /healthz."""
        if self._ending:
            return "the daemon is stopping"
        if not self._engine.main.pool.workforce.workers:
            return "no worker stands"
        return ""

    # --- reload ---------------------------------------------------------------

    def _reload(self) -> None:
        self._manager.reloading()
        try:
            config, left = live(self._config, self._load())
            self._observer.open(config.security_log)
        except (LeewardError, OSError) as error:  # for example, of a folder that has gone
            self._reloads[1] += 1
            log.error("configuration not reloaded: what was in force stays", error=str(error))
        else:
            self._reloads[0] += 1
            self._config = self._server.config = config
            log.adjust(config.log_level, config.log_json)
            self._server.govern(quotas(config, os.geteuid()))
            self._engine.govern(self._server.quotas, config.queue_size, config.queue_delay,
                                config.max_sessions)
            self._engine.logs_jobs = config.log_jobs
            self._idle.watch()
            log.info("configuration reloaded")
            if left:
                log.warning("changes that need a restart", keys=left)
        self._manager.ready(f"serving on {self._listener.path}")

    # --- the end --------------------------------------------------------------

    def _on_signal(self, name: str) -> None:
        log.info("signal", name=name)
        if name == "SIGHUP" and not (self._terminal and not has_terminal()):
            if hasattr(self, "_server") and not self._ending:
                self._reload()  # else it is just being read, or not needed any more
            return
        if self._ending:
            log.info("draining already", hurry="leeward daemon stop --now")
        self._shut_down()

    def _shut_down(self, now: bool = False) -> None:
        """Drain, unless that has begun; *now* ends running jobs at once, also in a drain."""
        if not self._ending:
            self._ending, self._stop_requested = True, time.monotonic()
            if not hasattr(self, "_server"):
                self._reactor.stop()  # ends `engine.start`
                return
            log.info("draining", seconds=0.0 if now else drain_s())
            self._manager.stopping("draining")
            if self._listener.kept:
                self._server.part()
            self._drain()
        if now and hasattr(self, "_server"):
            self._server.desk.hurry()
            self._engine.cut()

    def _drain(self) -> None:
        """End the loop when no job runs."""
        desk = self._server.desk
        waiting = {"engine", *(["sandboxes"] if desk.sleepers is not None else [])}

        def drained(which: str) -> None:
            waiting.discard(which)
            if not waiting:
                self._reactor.stop()

        if desk.sleepers is not None:
            self._manager.extend(MOST_S)
            desk.retire(drain_s(), partial(drained, "sandboxes"))
        self._engine.drain(drain_s(), partial(drained, "engine"))


def _log_the_ring(why: str) -> None:
    log.warning("io_uring fails: clients are served by epoll from now on", why=why)


def _log_standstill(still: Standstill) -> None:
    log.warning("the event loop stood still", seconds=round(still.seconds, 3), where=list(still.where),
                timed_out=still.timed_out, out_of_memory=still.out_of_memory)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal. One that was hung up doesn't count."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in SHORT  # short of descriptors: assume that it is there
    return True


def run(config: Config, ready: Callable[[], None] = lambda: None, load: Callable[[], Config] | None = None,
        bootstrap: Bootstrap | None = None) -> None:
    """
    Run the daemon that *config* describes, until it is told to end; LeewardError if it can't start, and nothing of it
    is left. *load* reads the configuration again, on SIGHUP; *bootstrap* is the result of `early.start`.
    """
    manager = Manager(os.environ, os.getpid())
    log.set_up(config.log_level, config.log_json, journal_stream=os.environ.get("JOURNAL_STREAM", ""))
    early.room_for_descriptors()
    heap.give_back(_LARGE_BLOCK)
    try:
        Daemon(config, load or (lambda: config), manager, bootstrap).run(ready)
    finally:
        if bootstrap is not None:
            bootstrap.close()
        manager.close()
