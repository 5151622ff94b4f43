"""
A shard: one more process of the daemon, with an event loop, a zygote and a part of the pool, for fresh jobs.

Theory of operation. The daemon passes connections, and gets back those that ask for anything else. The shard ends when
the daemon tells it to drain, or with the channel. It has no listener, and handles no signal: whoever sends one sends it
to the daemon, too.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward._native import heap
from leeward.base.dataclass import replace
from leeward.daemon import descriptors, early
from leeward.daemon.config import Config
from leeward.daemon.ending import OVERDUE_S, Signals, see_off
from leeward.daemon.loop.barrier import nothing
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.loop.reactor import Repeating
from leeward.daemon.pool.begin import begin
from leeward.daemon.pool.branches import memory_of
from leeward.daemon.pool.engine import Engine
from leeward.daemon.pool.pool import interleave
from leeward.daemon.pool.quotas import Quotas
from leeward.daemon.pool.watchdog import Watchdog
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.daemon.shards import messages
from leeward.daemon.shards.messages import Message, PassConnection, ShardChannel, ShardStart, own_part, pack_map, taken
from leeward.daemon.telling.log import log
from leeward.daemon.telling.metrics import Metrics
from leeward.daemon.telling.observer import Observer
from leeward.errors import LeewardError, PeerError

#: Slots between the first workers of two shards: more than the daemon's own pools can have.
SLOTS = 32768
#: Seconds between two reports of what has happened, while the shard has connections.
REPORT_S = 0.25
#: Ends of jobs in one message.
_ROWS = 32
#: Seconds that the daemon has to send `ShardStart`.
_START_S = 30.0
#: Freed blocks of at least so many bytes are returned to the kernel, as in the daemon.
_LARGE_BLOCK = 1 << 20


class ShardProcess:
    """A shard, by its end of the channel and the first message."""

    in_shard = True

    def __init__(self, sock: socket.socket, start: ShardStart) -> None:
        config = start.config
        self._sock, self._config = sock, config
        self._number, self._lives = start.number, start.lives
        self._reactor = NativeReactor(config.io, fast_path=config.fast_path and config.results != "memfd")
        self._metrics = Metrics()
        self._observer = Observer(self._reactor, self._metrics, sink=self._record)
        self._reports = Repeating(self._reactor, REPORT_S, self._report_again)
        self._reported = (0, False)
        self._sent: dict[int, int] = {}   # by user: the number of the last end that was sent
        self._users: dict[int, int] = {}  # by descriptor of a connection
        self._stop_requested = 0.0
        self._overtime = 0.0
        self._channel: ShardChannel | None = None

    def run(self) -> None:
        """Serve until the daemon says otherwise, or is gone; LeewardError if it can't start, and nothing of it is left."""
        config = self._config
        interleave(self._number, config.shards, self._lives)
        bootstrap = begin(early.settings(own_part(config, self._number)))
        try:
            settings = early.settings(own_part(config, self._number))
            shares = descriptors.shares(descriptors.limit(), bootstrap.driver, workers=settings.pool_size,
                                        spares=1 if config.fresh_layout else config.spares,
                                        asked=config.max_connections, metrics=False)
            bootstrap.driver.limit_leaves(shares.leaves)
        except LeewardError:
            bootstrap.close()
            raise
        settings = replace(settings, sandboxes=False, quotas=Quotas())
        engine = self._engine = Engine(self._reactor, settings, log, self._observer, bootstrap)
        engine.logs_jobs, engine.surplus, engine.first = config.log_jobs, shares.surplus, SLOTS * self._number
        try:
            if engine.start():
                self._serve(engine, shares)
        finally:
            # The channel is last: its end tells the daemon that nothing of this shard is left.
            self._reactor.barrier.steps(engine.close, *([] if self._channel is None else [self._channel.close]),
                                        self._reactor.close)

    def _serve(self, engine: Engine, shares: descriptors.Shares) -> None:
        server = self._server = Server(
            self._reactor, engine.main.pool, self._config, status=dict, shut_down=lambda now: None,
            users=ServedUsers(os.geteuid(), None, Quotas()), watcher=self._observer, shares=shares)
        server.exchange = self
        self._channel = ShardChannel(self._reactor, self._sock, self._hear, self._lost)
        gc.freeze()
        gc.enable()
        watchdog = Watchdog(self._reactor, lambda: engine.workers, time=self._config.limits.time,
                            report=lambda still: log.warning("the event loop of a shard stood still",
                                                             shard=self._number, seconds=round(still.seconds, 3)))
        watchdog.start()
        signals = Signals(self._reactor, lambda _name: None)
        try:
            self._send(messages.ShardReady(server.places))
            self._reactor.run(self._overdue)
            self._reactor.barrier.steps(partial(see_off, self._reactor, server, self._stop_requested, nothing))
            self._report()
        finally:
            self._reactor.barrier.steps(signals.close, watchdog.stop, server.close)

    def _overdue(self) -> bool:
        return bool(self._stop_requested) and time.monotonic() > self._stop_requested + self._overtime

    # --- the channel ----------------------------------------------------------

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _lost(self, why: str) -> None:
        """The daemon is gone. Nothing here outlives it."""
        log.debug("the daemon is gone: its shard ends", shard=self._number, why=why)
        self._stop_requested = time.monotonic()
        self._overtime = 0.0
        self._reactor.stop()

    def _hear(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, PassConnection):
            self._take(message, fds)
        elif isinstance(message, messages.SendCounts):
            self._send(messages.ShardCounts(message.number, pack_map(self._status()), pack_map(self._counts())))
        elif isinstance(message, messages.ShardGovern):
            self._govern(message.config)
        elif isinstance(message, messages.ShardMakeRoom):
            self._server.make_room()
        elif isinstance(message, messages.ShardDrain):
            self._stop_requested, self._overtime = time.monotonic(), message.seconds + OVERDUE_S
            if message.part:
                self._server.part()
            self._engine.drain(message.seconds, self._reactor.stop)
        elif isinstance(message, messages.ShardCut):
            self._engine.cut()
        else:
            raise PeerError(f"the daemon says {type(message).__name__}")

    def _govern(self, config: Config) -> None:
        self._config = self._server.config = config
        log.adjust(config.log_level, config.log_json)
        self._server.govern(Quotas())
        own = own_part(config, self._number)
        self._engine.govern(Quotas(), own.queue_size, own.queue_delay, 0)
        self._engine.logs_jobs = config.log_jobs

    # --- connections ----------------------------------------------------------

    def _take(self, message: PassConnection, fds: list[int]) -> None:
        try:
            sock, unread = taken(message, fds)
        except OSError as error:
            log.warning("a connection can't be taken", shard=self._number, error=error.strerror)
            self._send(messages.ConnectionClosed(message.user))
            return
        self._reports.start()
        fd = sock.fileno()
        self._users[fd] = message.user
        try:
            self._server.resume(sock, message.user, unread, message.keeps)
        except BaseException:
            if fd not in self._server.connections:
                sock.close()
                self.gone(fd)
            raise

    def wanted(self, fd: int) -> bool:
        """Never asked in a shard."""
        return False

    def pass_on(self, sock: socket.socket, user: int, unread: bytes, keeps: bool) -> bool:
        if self._channel is None or not self._channel.pass_on(sock, PassConnection(user, unread, keeps)):
            log.debug("a connection ends with the daemon", shard=self._number)
        self._users.pop(sock.fileno(), None)
        return True

    def status(self, own: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
        """Never asked in a shard, which moves such a connection to the daemon."""
        raise PeerError("a shard has no status of its own")

    def make_room(self) -> bool:
        return False

    def gone(self, fd: int) -> None:
        user = self._users.pop(fd, None)
        if user is not None:
            self._send(messages.ConnectionClosed(user))

    # --- reports --------------------------------------------------------------

    def _record(self, event: str, fields: dict[str, object]) -> None:
        self._send(messages.ShardRecord(event, pack_map(fields)))

    def _report_again(self) -> bool:
        self._report()
        return bool(self._server.connections)

    def _report(self) -> None:
        pool = self._engine.main.pool
        now = self._metrics.requests, bool(pool.running or len(pool.queue))
        if now != self._reported:
            self._reported = now
            self._send(messages.ShardActivity(*now))
        for user in self._observer.events.users:
            found = self._observer.events.after(user, self._sent.get(user, 0))
            self._sent[user] = found["last"]
            rows = found["events"]
            for at in range(0, len(rows), _ROWS):
                self._send(messages.ShardEnds(user, pack_map({"rows": rows[at:at + _ROWS]})))

    def _status(self) -> dict[str, Any]:
        return {**self._engine.main.pool.counts(), "faults": self._reactor.barrier.faults}

    def _counts(self) -> dict[str, Any]:
        pool = self._engine.main.pool
        return {"counters": self._metrics.counts(), "now": {
            "workers": pool.workforce.states(), "recycles": pool.workforce.recycled, "queued": len(pool.queue),
            "memory": {str(worker.slot): memory_of(worker) for worker in pool.workforce.workers},
            "runners_made": pool.workforce.runners_made, "connections": len(self._server.connections)}}


def main(control: int) -> None:
    """Run a shard whose channel is the descriptor *control*."""
    sock = socket.socket(fileno=control)
    sock.set_inheritable(False)
    for number in early.ENDING:
        signal.signal(number, lambda _number, _frame: None)  # not SIG_IGN, which other programs would inherit
    sock.settimeout(_START_S)
    start = messages.decode(sock.recv(messages.MAX_MESSAGE))
    if not isinstance(start, ShardStart):
        raise SystemExit(1)
    log.set_up(start.config.log_level, start.config.log_json, journal_stream=start.journal)
    early.room_for_descriptors()
    heap.give_back(_LARGE_BLOCK)
    try:
        ShardProcess(sock, start).run()
    except LeewardError as error:
        sock.setblocking(True)
        sock.send(messages.encode(messages.ShardFailed(str(error))))
        raise SystemExit(1) from None
