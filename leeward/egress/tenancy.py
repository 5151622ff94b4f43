"""
One lease of a sandbox's listeners: its policy, its connections, and what they have used of the limits so far.

Bound:     connections at once and in a minute by the policy; names by their table; remembered refusals by _MOST_ASKED;
           at most as many rows of refusals in a minute as connections; the next row says how many were left out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leeward.egress.dns import NameTable
from leeward.egress.policy import ALLOW, ASK, DENY, NEED_ADDRESS, Decision, Request, decide
from leeward.errors import PeerError
from leeward.spec.egress_policy import Policy
from leeward.spec.hosts import Address
from leeward.wire.egress_control import MAX_TEXT, Decided

if TYPE_CHECKING:
    from leeward.egress.asking import LeaseAsks
    from leeward.egress.pipes import Pipe
    from leeward.egress.sealing import Sealing

#: Refused names that are remembered, so that each has one row.
_MOST_ASKED = 1024

_MINUTE_S = 60.0

#: The cause of a refusal by a rule of `ask`, in addition to `policy.CAUSES`.
ANSWERED = "answered"


#: Takes a row of the record. It is never waited for.
Tell = Callable[[Decided], None]


class NotAllowed(PeerError):
    """Something isn't allowed by the policy's *decision*, or it was and has *failed*; *status* is the answer's."""

    def __init__(self, decision: Decision, *, failed: bool = False, status: int = 403) -> None:
        super().__init__(decision.reason)
        self.decision, self.failed, self.status = decision, failed, status


def refusal(reason: str, *, failed: bool = False, status: int = 403) -> NotAllowed:
    """Return the exception for a refusal that no rule has decided."""
    return NotAllowed(Decision("deny", "", reason), failed=failed, status=status)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task


def unanswered(decision: Decision) -> Decision:
    """Return *decision*; but if it is to ask, the refusal that takes its place when no client answers."""
    if decision.verdict != ASK:
        return decision
    return replace(decision, verdict=DENY, reason=f"{decision.reason}, and nobody is there to answer", cause=ANSWERED)


class Tenancy:
    """One lease, as long as it lasts: its open connections, and the bytes that ended ones have sent and received."""

    sealing: Sealing | None = None
    asks: LeaseAsks | None = None

    def __init__(self, lease: int, policy: Policy, key: bytes, send: Tell) -> None:
        self.lease, self.policy, self._send = lease, policy, send
        self.names = NameTable(key)
        self.open = self.sent = self.received = 0
        self._started: deque[float] = deque()
        self._refused: deque[float] = deque()
        self._left_out = 0
        self._asked: set[str] = set()
        self._numbers = 0
        self._tasks: dict[asyncio.Task[None], Pipe | None] = {}

    def succeed(self, former: Tenancy) -> None:
        """Go on with the names and the counts of *former*, the same lease under another policy, whose connections end."""
        self.names, self._started, self._refused = former.names, former._started, former._refused
        self._numbers, self._left_out = former._numbers, former._left_out

    # --- decisions and limits -------------------------------------------------

    def reachable(self, name: str) -> bool:
        """Whether the resolver answers *name*. A refused name is recorded once."""
        decision = decide(self.policy, Request(name, protocol="dns"))
        if self.hopeful(decision):
            return True
        decision = unanswered(decision)
        if name not in self._asked and len(self._asked) < _MOST_ASKED:
            self._asked.add(name)
            self.begin(name, None, 0).denied(decision)
        return False

    def hopeful(self, decision: Decision) -> bool:
        """Whether *decision* allows a request, or an answer to an ask could."""
        return decision.verdict in (ALLOW, NEED_ADDRESS) or (
            decision.verdict == ASK and self.asks is not None and self.asks.listening)

    async def approval(self, policy: Policy, request: Request) -> bool:
        """Wait for the answer to *request*: True if it is allowed, False if *policy* doesn't ask, else NotAllowed."""
        return self.asks is not None and await self.asks.approval(policy, request)

    def full(self) -> str:
        """Return the reason why there can't be another connection now, or ""."""
        most = self.policy.limits.connections
        return f"{most} connections are open, which is all that the policy allows" if self.open >= most else ""

    def over_rate(self) -> str:
        """Count one more request. Returns the reason why there can't be one now, or ""."""
        if self._counted(self._started):
            return ""
        return f"rate limit exceeded: {self.policy.limits.per_minute} in a minute"

    def _counted(self, times: deque[float]) -> bool:
        now = time.monotonic()
        while times and times[0] <= now - _MINUTE_S:
            times.popleft()
        if len(times) >= self.policy.limits.per_minute:
            return False
        times.append(now)
        return True

    def begin(self, name: str, address: Address | None, port: int) -> Attempt:
        """Begin an attempt at a connection or a request, which writes its rows to the record."""
        self._numbers += 1
        return Attempt(self, self._numbers, name, "" if address is None else str(address), port)

    def record(self, row: Decided) -> None:
        """Write a row of an attempt, within the bound: a job could otherwise fill the record, and use the daemon's time."""
        if row.verdict == "denied":
            if not self._counted(self._refused):
                self._left_out += 1
                return
            if self._left_out:
                more = f" ({self._left_out} refusals before this one were left out)"
                row = replace(row, reason=row.reason[:MAX_TEXT - len(more)] + more)
                self._left_out = 0
        self._send(row)

    # --- its tasks ------------------------------------------------------------

    def start(self, task: asyncio.Task[None], client: Pipe | None) -> None:
        """Add *task*, which serves the connection *client* or is a fetch, to this lease."""
        self._tasks[task] = client
        self.open += 1
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        client = self._tasks.pop(task)
        if client is not None:
            client.close(reset=True)  # still open if the task was cancelled before it began
        self.open -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):  # an OSError: a peer has gone, which is recorded
            self.begin("", None, 0).failed(f"a bug of the broker's: {type(error).__name__}")
            task.get_loop().call_exception_handler({"message": "a connection failed", "exception": error})

    async def close(self) -> None:
        """End every connection of the lease."""
        tasks = dict(self._tasks)
        for client in tasks.values():
            if client is not None:
                client.reset_at_end()
        await cancelled(*tasks)


class Attempt:
    """One attempt at a connection or a request, and its rows in the record."""

    def __init__(self, tenancy: Tenancy, number: int, name: str, address: str, port: int) -> None:
        self._tenancy, self._number = tenancy, number
        self.name, self.address, self.port = name, address, port
        self._rule = ""
        self._allowed = False

    def allowed(self, decision: Decision, address: Address, granted: bool = False) -> None:
        """Record once that a connection to *address* is made, allowed by *decision* or an answer to an ask."""
        if self._allowed and str(address) == self.address:
            return
        self.address, self._rule, self._allowed = str(address), decision.rule, True
        self._row("allowed", "approved" if granted else "")

    def denied(self, decision: Decision) -> None:
        """Record that the policy refuses the attempt, or that the approval that it needs was not given."""
        self._rule = decision.rule
        self._row("denied", decision.reason)

    def refused(self, refused: NotAllowed) -> None:
        """Record that there is no connection, for the reason in *refused*."""
        if refused.failed:
            self.failed(str(refused))
        else:
            self.denied(refused.decision)

    def failed(self, reason: str) -> None:
        """Record that the policy allows the attempt, and that it failed."""
        self._row("failed", reason)

    def closed(self, sent: int, received: int, reason: str = "") -> None:
        """Record the end of the connection, if there was one."""
        if self._allowed:
            self._allowed = False
            self._tenancy.sent += sent
            self._tenancy.received += received
            self._row("closed", reason, sent, received)

    def _row(self, verdict: str, reason: str = "", sent: int = 0, received: int = 0) -> None:
        self._tenancy.record(Decided(time.time(), self._tenancy.lease, self._number, self.name, self.address, self.port,
                                   verdict, _shown(self._rule), _shown(reason), sent, received))


def _shown(text: str) -> str:
    """Return as much of *text* as a row holds, with "?" in place of characters that a terminal doesn't print."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_TEXT])
