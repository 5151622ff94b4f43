"""
What the connections of one user share, and the parts of the daemon's bounds that one user or connection may have.

Runs in:   the daemon.
"""

from __future__ import annotations

from leeward.daemon.serving.rounds import Budget
from leeward.dataclass import dataclass

#: Bytes of unanswered requests that one guest may have. One request is accepted in any case.
GUEST_TAKEN = 256 << 20

#: The part that all connections of one guest together may have of the bounds on unfinished frames, results and request
#: arenas.
GUEST_SHARE = 4
#: The part of the bound on results that one connection may have.
CONNECTION_SHARE = 2


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
