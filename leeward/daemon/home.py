"""
What connections need of the server that they belong to, and have together.

Runs in:   the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from leeward.daemon.config import Config
from leeward.daemon.metrics import Metrics
from leeward.daemon.peers import Watcher
from leeward.dataclass import dataclass
from leeward.errors import Refused
from leeward.pool.report import Report
from leeward.pool.sessions import Session
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.worker.express import Client
from leeward.worker.reactor import Reactor
from leeward.worker.stream import Begun


class Ticket(Protocol):
    """
    A submitted job.
    """

    def cancel(self) -> None: ...


class Jobs(Protocol):
    """
    What the server needs of leeward.pool.Pool.
    """

    def submit(self, job: Job, done: Callable[[Report], None], queue_deadline: float, user: int,
               client: Client | None = None) -> Ticket: ...
    def begun(self, job: Job, done: Callable[[Report], None], user: int, begun: Begun) -> Ticket: ...
    @property
    def most_sessions(self) -> int: ...
    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int) -> Session: ...


@dataclass(slots=True)
class Share:
    """
    What the connections of one user have together.

    Attributes:
        free: no quota holds him, so his jobs may go the short way.
    """

    user: int
    guest: bool
    free: bool = False
    connections: int = 0
    held: int = 0
    arenas: int = 0
    sessions: int = 0
    requests: int = 0  # bytes of request arenas


class Home(Protocol):
    """
    What a connection needs of the server.

    Attributes:
        held: bytes of unfinished frames of all connections.
        arenas: memory files, and large frames, in parcels that aren't sent.
        requests: bytes of request arenas.
        as_armed: jobs get the limits with which their runners were armed.
    """

    reactor: Reactor
    jobs: Jobs
    config: Config
    metrics: Metrics
    watcher: Watcher
    status: Callable[[], Mapping[str, Any]]
    shut_down: Callable[[], None]
    shares: dict[int, Share]
    held: int
    arenas: int
    requests: int
    as_armed: bool

    def gone(self, fd: int) -> None: ...
