"""
The deadlines of a connection, which one sweep a second checks.

Runs in:   the daemon, on the reactor's one thread.
"""

from __future__ import annotations

from leeward.daemon.serving.flight import Flight
from leeward.daemon.serving.inbox import FRAME_S, Inbox
from leeward.daemon.serving.outbox import Outbox
from leeward.dataclass import dataclass

#: Seconds that a client may leave a reply unread before it counts as gone.
UNREAD_S = 30.0


@dataclass(frozen=True, slots=True)
class Lapsed:
    """
    Why a connection is to be closed.

    Attributes:
        refused: the peer has broken the protocol, and is told so.
    """

    why: str
    refused: bool = False


def overdue(inbox: Inbox, output: Outbox, flight: Flight, *, now: float, reading: bool, backlog: int,
            idle: bool) -> Lapsed | None:
    """
    The reason to close a connection now, if there is one.

    Args:
        now: the reactor's clock.
        reading: whether the connection is read.
        backlog: bytes of the fast path's answers that the kernel hasn't taken.
        idle: it has had no request for as long as the configuration allows.
    """
    late = inbox.late(now, reading)
    if not output:
        output.unread_since = (output.unread_since or now) if backlog else None
    if late:
        return Lapsed(f"a frame that isn't complete after {FRAME_S:.0f} s", refused=True)
    if output.unread_since is not None and now - output.unread_since > UNREAD_S:
        return Lapsed("replies unread")
    if flight.kept.late(UNREAD_S):
        return Lapsed("kept results unread")
    return Lapsed("idle") if idle and inbox.since is None else None
