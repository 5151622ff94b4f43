"""
The egress broker, seen from the daemon, which starts it with the first sandbox that has egress, reports leases to it,
and starts another one when it dies.

Owns: the process and its channel. The listeners are their workers'. Trust: its rows are checked
(wire/egress_control.py), and only shown.

Theory of operation. The daemon has all that the broker needs: each worker's listeners, and their lease. So a broker
that has died is replaced by another one, which gets all of it; the connections of the first are lost. No call blocks:
messages that the channel doesn't accept are queued, and a broker that reads nothing for STUCK_S is replaced, too.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass, replace
from leeward.base.points import point
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, READ, WRITE, Reactor
from leeward.daemon.loop.sender import MessageSender
from leeward.daemon.pool.asks import AskBook
from leeward.daemon.pool.zygotes import EventLog
from leeward.daemon.worker import bare
from leeward.errors import Busy, PeerError, Unsupported, told
from leeward.isolation.egress_route import EgressPlan
from leeward.wire import egress_control as control
from leeward.wire.fetches import check_answer

if TYPE_CHECKING:
    import subprocess

    from leeward.daemon.pool.ways_out import OpenSeal
    from leeward.spec.egress_tls import LeaseSeal


#: The most fetches of one user: each has a memory file in the daemon, and its response in the broker.
MOST_OF_USER = 16
#: Called with the answer that `check_answer` has checked.
Answered = Callable[[Mapping[str, Any]], None]


def failed(message: str, cause: str = "http", *, sent: bool = True) -> dict[str, Any]:
    """Return the answer to a fetch that wasn't tried (*sent* is False), or whose end isn't known."""
    return {"failed": cause, "message": message, "url": "", "sent": sent}


class Fetches:
    """The fetches that were passed to one broker, until each has its one answer: MOST_OF_USER of one user at a time."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[int, Answered]] = {}

    def begin(self, user: int, answered: Answered) -> int:
        """Register a fetch, and return its number; Busy if *user* has MOST_OF_USER already."""
        if sum(owner == user for owner, _ in self._waiting.values()) >= MOST_OF_USER:
            raise Busy(f"{MOST_OF_USER} fetches of yours are under way, all that a user may have")
        number = next(self._numbers)
        self._waiting[number] = (user, answered)
        return number

    def end(self, number: int) -> bool:
        """Forget a fetch. Returns whether it was still waited for."""
        return self._waiting.pop(number, None) is not None

    def answered(self, message: control.FetchAnswer) -> None:
        """Pass on the broker's answer to a fetch; PeerError if it is invalid."""
        answer = check_answer(message.about)
        found = self._waiting.pop(message.number, None)
        if found is not None:
            found[1](answer)

    def lost(self) -> None:
        """The broker has ended: answer all its fetches as failed."""
        waiting, self._waiting = self._waiting, {}
        answer = failed("HTTP error: the broker has ended, and the request with it; it may have been sent")
        in_any_case(*(partial(answered, answer) for _, answered in waiting.values()))


#: Seconds for which the channel may accept nothing.
STUCK_S = 5.0
#: Seconds before another broker is started, doubled each time that one has lived shortly, up to the second figure.
_AGAIN_S, _AGAIN_MOST_S = 0.1, 5.0
#: A broker that has lived for this many seconds is followed by another one without a longer pause.
_SOON_S = 30.0
#: Rows that are read in one turn of the loop.
_TURN = 64


@dataclass(slots=True, eq=False)
class Standing:
    """A worker's listeners, their lease, and the authority by which their TLS is terminated."""

    number: int
    plan: EgressPlan
    listeners: Sequence[int]
    lease: control.Leased | None = None
    seal: OpenSeal | None = None
    clearing: Callable[[], None] | None = None  # when the broker and the queues have nothing of the last lease
    ends: int = 0  # the number of leases that have ended


class BrokerConnection:
    """*begin* returns the first message for a broker, *record* gets each row, *asks* what rules of `ask` ask for."""

    costs = "broker"

    def __init__(self, reactor: Reactor, log: EventLog, begin: Callable[[], control.Begin],
                 record: Callable[[control.Decided], None], asks: AskBook) -> None:
        self._reactor, self._log, self._begin, self._record, self._asks = reactor, log, begin, record, asks
        asks.tell = self._send
        self._places: dict[object, Standing] = {}
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._sender: MessageSender | None = None
        self._again = NO_TIMER
        self._pause, self._since = _AGAIN_S, 0.0
        self._sent_seals: set[int] = set()
        self._closed = False
        self.starts = 0  # the number of brokers that were started
        self.fetches = Fetches()  # the number of fetches that were requested

    @property
    def pid(self) -> int:
        """The broker's pid; -1 if there is no broker."""
        return -1 if self._process is None else self._process.pid

    @property
    def stands(self) -> bool:
        return self._channel is not None

    # --- for the workers ------------------------------------------------------

    def stand(self, worker: object, plan: EgressPlan, listeners: Sequence[int], seal: OpenSeal | None = None) -> None:
        """Register a worker's listeners, until `gone`."""
        if seal is not None and seal.number not in self._sealed():
            seal.number = next(self._numbers)
        place = self._places[worker] = Standing(next(self._numbers), plan, listeners, seal=seal)
        if self._channel is not None:
            self._announce(place)
        elif not self._again.is_set:
            self._start()

    def lease(self, worker: object, runner: int, policy: dict[str, object], own: LeaseSeal | None = None) -> None:
        """Lease *worker*'s listeners to *runner*, under *policy*. *own*: its authority and placeholders, for TLS."""
        place = self._places[worker]
        lease = control.Leased(place.number, runner, os.urandom(32), policy)
        if place.seal is not None and own is not None:
            lease = replace(lease, seal=place.seal.number, signer=own.key, certificate=own.certificate,
                            placeholders=list(own.placeholders))
        place.lease = lease
        self._send(lease)

    def narrow(self, lease: int, policy: dict[str, object], fetch: dict[str, object]) -> None:
        """Put *lease* under *policy*, and its fetches under *fetch*: what it has open ends."""
        for place in self._places.values():
            if place.lease is not None and place.lease.lease == lease:
                place.lease = replace(place.lease, policy=policy, fetch=fetch)
                self._send(place.lease)

    def fetch(self, lease: int, about: dict[str, object], fds: Sequence[int], user: int,
              answered: Answered) -> Callable[[], None]:
        """
        Make a fetch for the client of the sandbox with *lease*; *answered* is called once, and later. *about* has the
        fields of FetchOrder; *fds*, the response's file and the request's body, stay the caller's. Returns the function
        that cancels it; Busy if *user* has too many, or there is no broker now.
        """
        found = [place for place in self._places.values() if place.lease is not None and place.lease.lease == lease]
        if self._channel is None or not found:
            raise Busy("there is no broker for this sandbox now; ask again")
        number = self.fetches.begin(user, answered)
        place = found[0].number
        self._send(control.FetchOrder(place, number, about), fds)

        def take_back() -> None:
            if self.fetches.end(number):
                self._send(control.Unfetch(place, number))
        return take_back

    def over(self, worker: object, cleared: Callable[[], None]) -> bool:
        """End the lease. Returns whether nothing of it is left in the broker; if not, *cleared* is called later."""
        place = self._places.get(worker)
        if place is None or place.lease is None:
            return True
        place.lease, place.clearing, place.ends = None, cleared, place.ends + 1
        self._clear(place, STUCK_S)
        return False

    def _clear(self, place: Standing, seconds: float) -> None:
        self._send(control.Over(place.number))
        self._reactor.after(seconds, partial(self._check_cleared, place, place.ends, self.starts))

    def _check_cleared(self, place: Standing, end: int, start: int) -> None:
        """Check whether the broker of that *start* has cleared the lease of that *end*."""
        if (place.clearing is not None and (end, start) == (place.ends, self.starts) and self._channel is not None
                and place in self._places.values()):
            self._end("it cleared no listeners in time")

    def _cleared(self, number: int) -> None:
        for place in self._places.values():
            if place.number == number and place.clearing is not None:
                cleared, place.clearing = place.clearing, None
                cleared()
                return

    def gone(self, worker: object) -> None:
        """Forget the worker's listeners: it has ended."""
        place = self._places.pop(worker, None)
        if place is not None:
            self._send(control.Gone(place.number))
            if place.seal is not None and place.seal.number not in self._sealed():
                self._sent_seals.discard(place.seal.number)
                self._send(control.Gone(place.seal.number))

    def _sealed(self) -> set[int]:
        return {place.seal.number for place in self._places.values() if place.seal is not None}

    # --- the broker's process -------------------------------------------------

    def _start(self) -> None:
        if self._closed or not self._places or self._channel is not None:
            return
        try:
            self._process, self._channel = start()
        except OSError as error:
            self._log.warning("the egress broker can't be started", error=told(error))
            self._start_again()
            return
        self.starts += 1
        self._since = self._reactor.now()
        self._sender = MessageSender(self._reactor, self._channel, self._end, STUCK_S)
        self._reactor.watch(self._channel.fileno(), READ, self._hear)
        self._log.info("egress broker started", pid=self._process.pid)
        self._sent_seals.clear()
        self._send(self._begin())
        if self._asks.listening.on:
            self._send(self._asks.listening)
        for place in self._places.values():
            self._announce(place)

    def _announce(self, place: Standing) -> None:
        if place.seal is not None and place.seal.number not in self._sent_seals:
            self._sent_seals.add(place.seal.number)
            with place.seal.opened() as fds:
                self._send(place.seal.message(), fds)
        self._send(control.Stand(place.number, list(place.plan.ports), place.plan.families), place.listeners)
        if place.clearing is not None:
            self._clear(place, 4 * STUCK_S)  # it has to start first
        if place.lease is not None:
            self._send(place.lease)

    def _start_again(self) -> None:
        if not self._again.is_set and not self._closed:
            lasted = self._reactor.now() - self._since
            self._pause = _AGAIN_S if lasted > _SOON_S else min(2 * self._pause, _AGAIN_MOST_S)
            self._again = self._reactor.after(self._pause, self._start)

    def _end(self, why: str) -> None:
        """End the broker; another one is started if it is needed."""
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        sender, self._sender = self._sender, None
        if channel is None or process is None or sender is None:
            return
        if not self._closed:
            self._log.warning("the egress broker has ended: connections of sandboxes end with it", why=why)
        in_any_case(sender.close, partial(self._reactor.forget, channel.fileno()), channel.close, process.kill,
                    process.wait, self.fetches.lost, self._asks.lost)
        if self._places:
            self._start_again()

    def _send(self, message: control.Message, fds: Sequence[int] = ()) -> None:
        if self._sender is not None:  # a broker gets all of it when it starts
            self._sender.send(control.encode(message), fds)

    def _hear(self, events: int) -> None:
        if events & WRITE and self._sender is not None:
            self._sender.flush()
        for _ in range(_TURN):
            if self._channel is None:
                return
            try:
                data = self._channel.recv(control.MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end("its process is gone")
                return
            try:
                row = control.decode(data)
                if isinstance(row, control.Decided):
                    self._record(row)
                elif isinstance(row, control.Cleared):
                    self._cleared(row.place)
                elif isinstance(row, control.FetchAnswer):
                    self.fetches.answered(row)
                elif isinstance(row, (control.Ask, control.Unask)):
                    self._asks.hear(row)
                else:
                    raise PeerError(f"it says {type(row).__name__}")
            except PeerError as error:
                self._end(str(error))
                return

    def broken(self, _error: Exception) -> None:
        """For the barrier: a callback has failed. Start another broker, which gets all of the state."""
        self._end("a bug of the daemon's")
        if self._places:
            self._start_again()

    def close(self) -> None:
        """End the broker, because the daemon ends."""
        self._closed = True
        in_any_case(self._again.cancel, partial(self._end, "the daemon ends"))


def check() -> None:
    """Check that the broker's packages are there; Unsupported if not."""
    if find_spec("h11") is None:
        raise Unsupported("egress", have="no h11", need="it, for requests of HTTP",
                          cure="pip install 'leeward[egress]'")


@point("broker.entry")
def _entry(control: int) -> str:
    """Return the program that the broker's process runs, with its end of the channel."""
    return f"from leeward.egress.main import main\nmain({control})\n"


def start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the broker, which waits for `Begin`. Returns its process, and our end of its channel; OSError."""
    found = [each.origin for each in map(find_spec, ("h11", "cryptography")) if each is not None and each.origin]
    places = list(dict.fromkeys(os.path.dirname(os.path.dirname(origin)) for origin in found))
    return bare.start(_entry, places)
