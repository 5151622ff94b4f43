"""
Sends code to a kernel by a number that is valid on one connection, like that of a session, so that the daemon handles
the request on its fast path.

Runs in:   anybody's program.

The first request to a kernel on a connection names it. Before the second one the connection binds it (`kernel_bind`);
from then on code alone is sent with its number. Where binding isn't possible, every request names the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.client.link import Link
from leeward.errors import DaemonAway, PeerError, Refused, ShuttingDown
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import whole

#: Entries of `Link.seats` in place of a number: a kernel that one request has named, and one that can't be bound.
SEEN, NAMED = 0, -1
#: The greatest number of kernels that are remembered for a connection.
MOST = 256


def execute(link: Link, by_name: Mapping[str, Any]) -> tuple[Reply, list[int]]:
    """
    Run code in a kernel. Returns the reply and its descriptors, which the caller owns.

    Args:
        by_name: the fields of a sandbox_execute request for the kernel, with `code` and no option.

    Raises:
        DaemonError: as for `Link.call`.
    """
    key = by_name["sandbox"], by_name["kernel"]
    seat = link.seats.get(key) if link.connected else None
    if seat == SEEN:
        seat = _bound(link, *key)
    if seat is None or seat == NAMED:
        answer = link.call("sandbox_execute", by_name)
        if len(link.seats) >= MOST:
            link.seats.clear()
        link.seats.setdefault(key, SEEN)
        return answer
    try:
        return link.call("execute", {"session": seat, "code": by_name["code"]}, reconnect=False)
    except (DaemonAway, ShuttingDown) as error:  # the number ended with the connection
        if error.may_have_run:
            raise
    return link.call("sandbox_execute", by_name)


def _bound(link: Link, sandbox: str, kernel: int) -> int:
    """Bind a kernel to the connection. Returns the kernel's number on the connection, or NAMED if it can't be bound."""
    try:
        reply, _ = link.call("kernel_bind", {"sandbox": sandbox, "kernel": kernel}, retry=False,
                             retry_busy=False)
        seat = whole(reply, "session", 1)
    except DaemonAway:
        return NAMED
    except (Refused, PeerError):  # if the kernel has ended, the execute request is refused with that reason
        seat = NAMED
    link.seats[sandbox, kernel] = seat
    return seat
