"""
The server as its connections see it, and what the connections of one user share.

Runs in:   the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leeward.daemon.config import Config
from leeward.daemon.serving.moving import OtherProcesses
from leeward.daemon.serving.peers import RefusalObserver
from leeward.daemon.serving.rounds import Budget, Rounds
from leeward.daemon.telling.metrics import Metrics
from leeward.dataclass import dataclass
from leeward.errors import BadRequest, Busy, Refused
from leeward.loop.fast_path import ReplyAddress
from leeward.loop.reactor import Reactor
from leeward.loop.stream import JobStart
from leeward.pool.asks import AskBook
from leeward.pool.egress_record import EgressRecord
from leeward.pool.fetches import Answered
from leeward.pool.seats import Seat
from leeward.pool.sessions import Cancellable, PoolSession
from leeward.protocols import Protocol
from leeward.run.report import Arena, Report
from leeward.sandboxes.desk import Desk
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.pool_key import PoolKey
from leeward.spec.sandbox import SandboxSpec

#: Bytes of unanswered requests that one guest may have. One request is accepted in any case.
GUEST_TAKEN = 256 << 20

#: The part that all connections of one guest together may have of the bounds on unfinished frames, results and request
#: arenas.
GUEST_SHARE = 4


#: Takes the lease, the request, the descriptors, the user, and the callback for the answer; returns what cancels it.
Fetch = Callable[[int, dict[str, object], Sequence[int], int, Answered], Callable[[], None]]


def no_fetch(*_: object) -> Callable[[], None]:
    """The `fetch` of a server without a broker."""
    raise Busy("there is no broker")


class JobPool(Protocol):
    """leeward.pool.Pool, as far as the server needs it."""

    def submit(self, job: Job, done: Callable[[Report], None], queue_deadline: float, user: int,
               client: ReplyAddress | None = None) -> Cancellable: ...
    def job_started(self, job: Job, done: Callable[[Report], None], user: int, start: JobStart) -> Cancellable: ...
    @property
    def crowded(self) -> bool: ...
    def refusal(self, user: int, connection: int, now: float) -> Busy | None: ...
    def shed(self, connection: int, count: int, now: float) -> None: ...
    def connection_closed(self, connection: int) -> None: ...
    @property
    def most_sessions(self) -> int: ...
    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int, egress: Mapping[str, Any] | None) -> PoolSession: ...
    def open_seat(self, limits: Limits, user: int, opened: Callable[[Any], None], lost: Callable[[str], None],
                  drained: Callable[[], None], seconds: float) -> Seat: ...


class PoolPlace(Protocol):
    """`leeward.pool.branch.Branch`, as far as the server needs it: it serves the requests of one key."""

    @property
    def pool(self) -> JobPool: ...
    @property
    def limits(self) -> Limits:
        """The limits of a job whose request sets none."""

    @property
    def spec(self) -> SandboxSpec: ...
    @property
    def degraded(self) -> tuple[str, ...]: ...


def no_place(key: PoolKey) -> PoolPlace:
    """The `place` of a server that has one pool."""
    raise BadRequest(f"this daemon has no {key.name}")


@dataclass(slots=True)
class Share:
    """
    The state that the connections of one user share.

    Attributes:
        budget: how much of this user's requests may be served now.
        taken: bytes of a guest's requests that have no answer yet.
        free: no quota limits this user, so their jobs may take the fast path.
    """

    user: int
    guest: bool
    budget: Budget
    free: bool = False
    connections: int = 0
    held: int = 0
    arenas: int = 0
    sessions: int = 0
    taken: int = 0
    requests: int = 0  # bytes of request arenas


class ServerContext(Protocol):
    """
    The server, as far as a connection needs it.

    Attributes:
        place: returns the object that serves requests for another pool than *jobs*; raises BadRequest or Refused if
            there is none.
        held: bytes of unfinished frames of all connections.
        arenas: memory files and large frames in parcels that haven't been sent.
        requests: bytes of request arenas.
        most_results: memory files, and large frames, that may wait for their clients.
        most_requests: bytes of request arenas that there may be.
        egress: the record of the connections that sandboxes tried to make.
        asks: connections that wait for the operator's answer.
        as_armed: jobs get the limits with which their runners were armed.
        fetch: makes a fetch under a sandbox's policy; `leeward.pool.ways_out.Exits.fetch`.
        exchange: the other processes of the daemon; None if there are no shards.
    """

    reactor: Reactor
    jobs: JobPool
    config: Config
    metrics: Metrics
    watcher: RefusalObserver
    status: Callable[[], Mapping[str, Any]]
    shut_down: Callable[[bool], None]
    place: Callable[[PoolKey], PoolPlace]
    shares: dict[int, Share]
    held: int
    arenas: int
    requests: int
    most_results: int
    as_armed: bool
    desk: Desk
    egress: EgressRecord
    asks: AskBook
    fetch: Fetch
    rounds: Rounds
    exchange: OtherProcesses | None

    @property
    def most_requests(self) -> int: ...
    def most_sandboxes(self, user: int) -> int: ...
    def gone(self, fd: int) -> None: ...
    def part_from(self, share: Share) -> None: ...
    def lend(self, user: int, arenas: Sequence[Arena]) -> None:
        """Count memory files that are about to be sent to *user*, a guest."""

    def lent_too_much(self, user: int) -> str:
        """Return a message that says which results *user* has to close before others can be had; "" if none."""


def unread_results(home: ServerContext, share: Share) -> str:
    """A message that says which results have to be read before another job of *share*'s user may start; "" if none."""
    most = home.most_results
    if home.arenas >= most:
        return f"{most} large results wait for clients that don't read them"
    if share.guest and share.arenas >= max(1, most // GUEST_SHARE):
        return f"{max(1, most // GUEST_SHARE)} large results of yours wait, and you don't read them"
    return home.lent_too_much(share.user) if share.guest else ""
