"""
The daemon's side of its shards: it starts them, deals connections to them, takes connections back, and ends them.

Owns: the shards' processes and channels, and their places among the control groups.

Theory of operation. Every connection is accepted, and its user checked, by the daemon, which counts it until it is
closed: bounds and quotas on connections hold for all processes together. Only users without quotas are served by
shards, so that quotas on jobs are counted in one process. A connection that has begun with a fresh job goes to the
process with the fewest of such connections; `serving/moving.py` has the move. A shard that dies takes its connections
with it, and another one is started; without any the daemon serves all by itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward.base.dataclass import dataclass, field
from leeward.daemon.config import Config
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.reactor import Reactor, Repeating, Timer
from leeward.daemon.serving.server import Server
from leeward.daemon.shards import messages
from leeward.daemon.shards.messages import Message, PassConnection, ShardChannel, ShardCounts, added, of_shard, taken
from leeward.daemon.telling.log import log
from leeward.daemon.telling.observer import Observer
from leeward.daemon.worker import bare
from leeward.errors import LeewardError, PeerError, told, told_with_type
from leeward.spec.peers import credentials

#: Seconds that the shards have for an answer.
ANSWER_S = 0.5

#: Takes the counters of the shards that have answered, by their numbers.
Gathered = Callable[[dict[int, ShardCounts]], None]


@dataclass(slots=True, eq=False)
class _Question:
    missing: set[int]
    done: Gathered
    timer: Timer
    found: dict[int, ShardCounts] = field(default_factory=dict)


class Gathering:
    """All questions to the shards that aren't answered yet."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._asks: dict[int, _Question] = {}
        self._last = 0

    def ask(self, shards: Mapping[int, Callable[[int], object]], done: Gathered) -> Callable[[], None]:
        """
        Ask *shards*, by functions that send a question's number, and call *done* later with the answers that come in
        time. Returns what cancels this.
        """
        self._last += 1
        number = self._last
        self._asks[number] = _Question(set(shards), done, self._reactor.after(ANSWER_S, partial(self._finish, number)))
        for send in shards.values():
            send(number)
        self._reactor.soon(partial(self._look, number))
        return partial(self._forget, number)

    def answered(self, shard: int, counts: ShardCounts) -> None:
        if counts.number in self._asks:
            self._asks[counts.number].found[shard] = counts
            self._expect_no_more(counts.number, shard)

    def lost(self, shard: int) -> None:
        """*shard* has ended, and answers nothing any more."""
        for number in list(self._asks):
            self._expect_no_more(number, shard)

    def _expect_no_more(self, number: int, shard: int) -> None:
        asked = self._asks.get(number)
        if asked is not None and shard in asked.missing:
            asked.missing.discard(shard)
            self._look(number)

    def _look(self, number: int) -> None:
        if number in self._asks and not self._asks[number].missing:
            self._finish(number)

    def _finish(self, number: int) -> None:
        asked = self._asks[number]
        self._forget(number)
        asked.done(asked.found)

    def _forget(self, number: int) -> None:
        asked = self._asks.pop(number, None)
        if asked is not None:
            asked.timer.cancel()


#: Seconds that a shard has to end, and between two looks whether it has.
END_S, _LOOK_S = 3.0, 0.05


class Departures:
    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._leaving: dict[subprocess.Popen[bytes], Callable[[], None]] = {}
        self._looks = Repeating(reactor, _LOOK_S, self._look)

    def add(self, process: subprocess.Popen[bytes], leave: Callable[[], None]) -> None:
        """Reap *process* when it has ended, or kill it after END_S; then call *leave*."""
        self._leaving[process] = leave
        self._reactor.after(END_S, partial(self._end, process))
        self._look()
        self._looks.start()

    def _look(self) -> bool:
        for process in list(self._leaving):
            if process.poll() is not None:
                self._end(process)
        return bool(self._leaving)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        leave = self._leaving.pop(process, None)
        if leave is not None:
            if process.poll() is None:
                log.warning("a shard doesn't end: it is killed", pid=process.pid)
            in_any_case(process.kill, process.wait, leave)

    def close(self) -> None:
        """Wait for all of them, for END_S together."""
        deadline = time.monotonic() + END_S
        for process in list(self._leaving):
            try:
                process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # `_end` kills it
            self._end(process)


#: Seconds before another shard is started, doubled each time that it follows soon, up to the second.
_AGAIN_S, _AGAIN_MOST_S = 0.1, 5.0
#: A shard that has lived for so many seconds is followed by another one without a longer pause.
_SOON_S = 30.0


@dataclass(slots=True, eq=False)
class Shard:
    """
    One shard, and its successors: *lives* were started. It takes *places* connections, 0 until it is ready, and has
    those of *users* by uid; *leave* removes its place among the control groups.
    """

    number: int
    process: subprocess.Popen[bytes] | None = None
    channel: ShardChannel | None = None
    places: int = 0
    users: Counter[int] = field(default_factory=Counter)
    requests: int = 0
    busy: bool = False
    counts: messages.ShardCounts | None = None
    leave: Callable[[], None] = nothing
    lives: int = 0
    since: float = 0.0
    pause: float = _AGAIN_S
    again: Timer | None = None

    @property
    def connections(self) -> int:
        return self.users.total()


class Dealer:
    """
    The shards by number, from 1 on. *annex* lets a process, given its number and pid, make control groups, and returns
    what removes their place. *ended* has the counters of ended shards, as `ShardCounts.metrics`, as far as they are
    known.
    """

    costs = "shard"
    in_shard = False

    def __init__(self, reactor: Reactor, server: Server, config: Config, observer: Observer,
                 annex: Callable[[int, int], Callable[[], None]], journal: str = "") -> None:
        self._reactor, self._server, self._config, self._observer = reactor, server, config, observer
        self._annex, self._journal = annex, journal
        self.shards = {number: Shard(number) for number in range(1, config.shards)}
        self.ended: dict[str, Any] = {}
        self._own: set[int] = set()
        self._gathering, self._departures = Gathering(reactor), Departures(reactor)
        self._drained: Callable[[], None] | None = None
        self._ending = False

    def begin(self) -> None:
        for shard in self.shards.values():
            self._start(shard)

    # --- for connections ------------------------------------------------------

    def wanted(self, fd: int) -> bool:
        if self._least() is not None:
            return True
        self._own.add(fd)
        return False

    def _least(self) -> Shard | None:
        """The shard that gets the next connection; None if the daemon itself gets it."""
        able = [shard for shard in self.shards.values() if shard.connections < shard.places and not self._ending]
        least = min(able, key=lambda shard: shard.connections, default=None)
        return least if least is not None and least.connections <= len(self._own) else None

    def pass_on(self, sock: socket.socket, user: int, unread: bytes, keeps: bool) -> bool:
        shard = self._least()
        if shard is None or shard.channel is None:
            return False
        self._server.join(user)
        shard.users[user] += 1
        self._server.dealt += 1
        try:
            if shard.channel.pass_on(sock, PassConnection(user, unread, keeps)):
                return True
        except OSError as error:
            log.warning("a connection can't be dealt", error=error.strerror)
        if shard.users[user]:  # else the shard has ended, and `_end` has counted this one
            self._left(shard, user)
        return False

    def _left(self, shard: Shard, user: int) -> None:
        """A connection of *user* has left *shard*."""
        if shard.users[user] <= 0:
            raise PeerError(f"user {user} has no connection there")
        shard.users[user] -= 1
        self._server.dealt -= 1
        self._server.part_from(self._server.shares[user])

    def make_room(self) -> bool:
        most = max(self.shards.values(), key=lambda shard: shard.connections, default=None)
        if most is not None and most.connections and most.channel is not None:
            most.channel.send(messages.ShardMakeRoom())
        return False

    def gone(self, fd: int) -> None:
        self._own.discard(fd)

    # --- their processes ------------------------------------------------------

    def _start(self, shard: Shard) -> None:
        shard.again = None
        if self._ending or shard.channel is not None:
            return
        try:
            shard.process, sock = start()
            shard.leave = self._annex(shard.number + shard.lives * len(self.shards), shard.process.pid)
        except (OSError, LeewardError) as error:
            log.error("a shard can't be started", shard=shard.number, error=told_with_type(error))
            self._dismiss(shard)
            self._start_again(shard)
            return
        shard.since = self._reactor.now()
        shard.channel = ShardChannel(self._reactor, sock, partial(self._hear, shard), partial(self._end, shard))
        shard.channel.send(messages.ShardStart(of_shard(self._config), shard.number, shard.lives, self._journal))
        shard.lives += 1
        log.info("shard started", shard=shard.number, pid=shard.process.pid)

    def _start_again(self, shard: Shard) -> None:
        if shard.again is None and not self._ending:
            lasted = self._reactor.now() - shard.since
            shard.pause = _AGAIN_S if lasted > _SOON_S else min(2 * shard.pause, _AGAIN_MOST_S)
            shard.again = self._reactor.after(shard.pause, partial(self._start, shard))

    def _end(self, shard: Shard, why: str) -> None:
        """The shard's channel has ended. Its connections have ended with it."""
        shard.channel = None
        shard.places, shard.requests, shard.busy = 0, 0, False
        self._remember(shard)
        users, shard.users = shard.users, Counter()
        for user, connections in users.items():
            for _ in range(connections):
                self._server.dealt -= 1
                self._server.part_from(self._server.shares[user])
        if self._drained is None:
            log.warning("a shard has ended: its connections end with it", shard=shard.number, why=why,
                        connections=users.total())
        self._dismiss(shard)
        self._gathering.lost(shard.number)
        self._start_again(shard)
        self._look_drained()

    def _remember(self, shard: Shard) -> None:
        counts, shard.counts = shard.counts, None
        if counts is None:
            return
        try:
            theirs = messages.unpack_map(counts.metrics)
            now = {name: theirs["now"][name] for name in ("recycles", "runners_made")}
            self.ended = added(self.ended, {"counters": theirs["counters"], "now": now})
        except (PeerError, KeyError, TypeError) as error:
            log.warning("counts of a shard can't be used", shard=shard.number, error=told(error))

    def _dismiss(self, shard: Shard) -> None:
        """The shard's process is to end. Another one may be started meanwhile."""
        process, shard.process = shard.process, None
        leave, shard.leave = shard.leave, nothing
        if process is not None:
            self._departures.add(process, leave)

    # --- what they say --------------------------------------------------------

    def _hear(self, shard: Shard, message: Message, fds: list[int]) -> None:
        try:
            if isinstance(message, PassConnection):
                self._take_back(shard, message, fds)
            elif isinstance(message, messages.ConnectionClosed):
                self._left(shard, message.user)
            elif isinstance(message, messages.ShardActivity):
                shard.requests, shard.busy = message.requests, message.busy
            elif isinstance(message, messages.ShardReady):
                shard.places = message.places
                log.info("shard ready", shard=shard.number, connections=message.places)
            elif isinstance(message, messages.ShardCounts):
                shard.counts = message
                self._gathering.answered(shard.number, message)
            elif isinstance(message, messages.ShardEnds):
                for row in messages.unpack_map(message.rows)["rows"]:
                    self._observer.events.take_over(message.user, row)
            elif isinstance(message, messages.ShardRecord):
                self._observer.record(message.event, {"shard": shard.number, **messages.unpack_map(message.fields)})
            elif isinstance(message, messages.ShardFailed):
                log.error("a shard can't start", shard=shard.number, error=message.why)
            else:
                raise PeerError(f"it says {type(message).__name__}")
        except (PeerError, KeyError, TypeError, AttributeError, ValueError) as error:
            if shard.channel is not None:
                shard.channel.close()
                self._end(shard, told_with_type(error))

    def _take_back(self, shard: Shard, message: PassConnection, fds: list[int]) -> None:
        try:
            sock, unread = taken(message, fds)
        except OSError as error:
            self._left(shard, message.user)
            log.warning("a connection can't be taken back", error=error.strerror)
            return
        user = credentials(sock)[1]
        try:
            self._left(shard, user)
        except BaseException:
            sock.close()
            raise
        self._server.resume(sock, user, unread, message.keeps)

    # --- for the daemon -------------------------------------------------------

    @property
    def activity(self) -> tuple[int, bool]:
        """Requests that shards have had, and whether one of them has a job."""
        shards = self.shards.values()
        return sum(shard.requests for shard in shards), any(shard.busy for shard in shards)

    def _tell(self, message: Message) -> None:
        for shard in self.shards.values():
            if shard.channel is not None:
                shard.channel.send(message)

    def govern(self, config: Config) -> None:
        self._config = config
        self._tell(messages.ShardGovern(of_shard(config)))

    def gather(self, done: Gathered) -> Callable[[], None]:
        """Ask the shards for their counters, and call *done* later with those that came. Returns what cancels this."""
        return self._gathering.ask({shard.number: partial(_ask, shard.channel) for shard in self.shards.values()
                                    if shard.places and shard.channel is not None}, done)

    def status(self, own: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
        return self.gather(partial(self._status_of_all, own, done))

    def _status_of_all(self, own: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None],
                       found: dict[int, messages.ShardCounts]) -> None:
        total = dict(own)
        rows = {row["shard"]: dict(row) for row in self._rows()}
        for number, counts in found.items():
            try:
                theirs = messages.unpack_map(counts.status)
                total |= added({name: total[name] for name in theirs if name in total}, theirs)
                rows[number] |= {"workers": theirs["workers"], "jobs": theirs["jobs"]}
            except (PeerError, KeyError) as error:
                log.warning("counts of a shard can't be used", shard=number, error=told(error))
        done({**total, "shards": list(rows.values())})

    def _rows(self) -> list[Mapping[str, Any]]:
        return [{"shard": shard.number, "pid": -1 if shard.process is None else shard.process.pid,
                 "state": "serving" if shard.places else "starting", "connections": shard.connections}
                for shard in self.shards.values()]

    def drain(self, seconds: float, part: bool, done: Callable[[], None]) -> None:
        """Let the shards end when no job runs, at the latest after *seconds*; then call *done*."""
        self._ending, self._drained = True, done
        for shard in self.shards.values():
            if shard.again is not None:
                shard.again.cancel()
        self._tell(messages.ShardDrain(seconds, part))
        self._reactor.soon(self._look_drained)

    def _look_drained(self) -> None:
        if self._drained is not None and all(shard.channel is None for shard in self.shards.values()):
            done, self._drained = self._drained, None
            done()

    def cut(self) -> None:
        self._tell(messages.ShardCut())

    def close(self) -> None:
        """End the shards, and wait for their processes for a bounded time."""
        self._ending = True
        for shard in self.shards.values():
            if shard.again is not None:
                shard.again.cancel()
            if shard.channel is not None:
                shard.channel.close()
                shard.channel = None
            self._dismiss(shard)
        self._departures.close()

    def broken(self, _error: Exception) -> None:
        self._look_drained()


def _ask(channel: ShardChannel, number: int) -> None:
    channel.send(messages.SendCounts(number))


def _entry(control: int) -> str:
    return ("from leeward.daemon import memory\nmemory.prepare()\n"
            f"from leeward.daemon.shards.shard import main\nmain({control})\n")


def start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process of a shard, which waits for `ShardStart`, or OSError. Returns it, and our end of its channel."""
    places = [path for path in sys.path if path and os.path.isdir(os.path.join(path, "structlog"))]
    return bare.start(_entry, places, os.environ)
