"""
The server as its connections see it, and what the connections of one user share.

Runs in:   the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leeward.daemon.serving.rounds import Budget
from leeward.dataclass import dataclass
from leeward.errors import BadRequest, Busy
from leeward.pool.fetches import Answered
from leeward.spec.pool_key import PoolKey

if TYPE_CHECKING:
    from leeward.daemon.serving.server import Server
    from leeward.pool.branch import Branch

#: Bytes of unanswered requests that one guest may have. One request is accepted in any case.
GUEST_TAKEN = 256 << 20

#: The part that all connections of one guest together may have of the bounds on unfinished frames, results and request
#: arenas.
GUEST_SHARE = 4
#: The part of the bound on results that one connection may have.
CONNECTION_SHARE = 2


#: Takes the lease, the request, the descriptors, the user, and the callback for the answer; returns what cancels it.
Fetch = Callable[[int, dict[str, object], Sequence[int], int, Answered], Callable[[], None]]


def no_fetch(*_: object) -> Callable[[], None]:
    """The `fetch` of a server without a broker."""
    raise Busy("there is no broker")


def no_place(key: PoolKey) -> Branch:
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


def unread_results(home: Server, share: Share) -> str:
    """A message that says which results have to be read before another job of *share*'s user may start; "" if none."""
    most = home.most_results
    if home.arenas >= most:
        return f"{most} large results wait for clients that don't read them"
    if share.guest and share.arenas >= max(1, most // GUEST_SHARE):
        return f"{max(1, most // GUEST_SHARE)} large results of yours wait, and you don't read them"
    return home.lent_too_much(share.user) if share.guest else ""
