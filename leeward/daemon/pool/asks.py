"""
The asks of `ask` rules, from the broker's message until an answer, or until no connection waits for one any more.

Trust: none in the broker's texts, which are checked and only shown. The daemon's own records say which sandbox asks.
The caller has to check who may answer: the operator, and no guest. Listens: a connection that has requested asks with a
time to wait listens until it is closed. GRACE_S after the last one was closed the waiting asks are refused, and none
waits from then on. Bound: MOST_OF_USER asks of one user's sandboxes, MOST of all; more are refused at once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward.base.dataclass import dataclass
from leeward.base.points import point
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, Reactor
from leeward.daemon.pool.egress_record import EgressRecord
from leeward.errors import PeerError
from leeward.wire.egress_asks import check_ask
from leeward.wire.egress_control import Ask, AskAnswer, Listening, Unask

#: The most asks that wait: of one user's sandboxes, of all, and in one answer to a listener.
MOST_OF_USER, MOST, PAGE = 64, 1024, 64
#: Seconds in which a client that listens may come back by another connection.
GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class HeldAsk:
    number: int  # the number that the broker has given the ask
    lease: int
    user: int  # the uid of the sandbox's user
    row: Mapping[str, Any]  # the ask as clients get it


class AskBook:
    """*tell*: sends a message to the broker."""

    def __init__(self, reactor: Reactor, record: EgressRecord) -> None:
        self._reactor, self._record = reactor, record
        self._numbers = itertools.count(1)
        self._asks: dict[int, HeldAsk] = {}
        self._waiting: dict[int, Callable[[], None]] = {}
        self._tickets = itertools.count(1)
        self._listeners = 0
        self._grace = NO_TIMER
        self.tell: Callable[[Listening | AskAnswer], None] = lambda _: None  # there is no broker, and so no ask
        self.refused = 0  # asks that were refused because too many waited

    def __len__(self) -> int:
        return len(self._asks)

    @property
    def listening(self) -> Listening:
        """Return the message that tells a new broker whether a client listens."""
        return Listening(int(self._listeners > 0 or self._grace.is_set))

    def hear(self, message: Ask | Unask) -> None:
        """Handle a message of the broker: a new ask, or the end of one. Raises PeerError: the message is invalid."""
        if isinstance(message, Unask):
            self._asks = {at: each for at, each in self._asks.items() if each.number != message.number}
            return
        about = check_ask(message.about)
        if any(each.number == message.number for each in self._asks.values()):
            raise PeerError("an ask with another one's number")
        lessee = self._record.lessee(message.lease)
        if lessee is None:
            self.tell(AskAnswer(message.number, 0, "the sandbox is over"))
            return
        if len(self._asks) >= MOST or sum(each.user == lessee.user for each in self._asks.values()) >= MOST_OF_USER:
            self.refused += 1
            self.tell(AskAnswer(message.number, 0, f"{MOST_OF_USER} connections or requests of this user's wait for"
                                                   " an answer, which is all that there may be"))
            return
        number = next(self._numbers)
        row = {"ask": number, "user": lessee.user, **lessee.about, "policy": lessee.policy, "time": time.time(),
               **about}
        self._asks[number] = HeldAsk(message.number, message.lease, lessee.user, row)
        waiting, self._waiting = self._waiting, {}
        in_any_case(*waiting.values())

    def over(self, lease: int) -> None:
        """Forget the asks of a sandbox whose lease has ended."""
        if self._asks:
            self._asks = {at: each for at, each in self._asks.items() if each.lease != lease}

    def lost(self) -> None:
        """Forget all asks: the broker has ended, and every connection with it."""
        self._asks = {}

    def after(self, _user: int, number: int) -> dict[str, Any]:
        """Return a page of the waiting asks, from the one after *number* on."""
        found = list(itertools.islice((each.row for at, each in self._asks.items() if at > number), PAGE))
        return {"events": found}

    def wait(self, _user: int, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* once, at the next ask. Returns a function that cancels that."""
        ticket = next(self._tickets)
        self._waiting[ticket] = wake
        return partial(self._take_back, ticket)

    def _take_back(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)

    def listen(self) -> None:
        """Count one more connection that listens, until `unlisten`."""
        self._listeners += 1
        if self._grace.is_set:
            self._grace.cancel()
        elif self._listeners == 1:
            self.tell(Listening(1))

    def unlisten(self) -> None:
        """Count one connection less: one that listened was closed."""
        self._listeners -= 1
        if not self._listeners:
            self._grace = self._reactor.after(_grace_s(), self._unheard)

    def _unheard(self) -> None:
        self._asks = {}
        self.tell(Listening(0))  # the broker then refuses the waiting asks

    def answer(self, number: int, allow: bool, message: str) -> bool:
        """Answer an ask. Returns whether it still waited."""
        found = self._asks.pop(number, None)
        if found is None:
            return False
        if not (allow or message):
            message = f"Denied by leeward (request {number})"
        self.tell(AskAnswer(found.number, int(allow), message))
        return True


@point("asks.grace")
def _grace_s() -> float:
    return GRACE_S
