"""
The end of a process that serves clients: they get the time to read their last replies.

Runs in:   the daemon and its shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from leeward.daemon.serving.server import Server
from leeward.loop.reactor import Reactor
from leeward.points import point

#: Seconds that running jobs have after a SIGTERM. Together with the rest the daemon ends within 5.
DRAIN_S = 4.0
#: Seconds that clients have to read their last replies; and seconds after the order to end before which the socket
#: stays: on a busy host a client that has just connected may send its request late.
FLUSH_S, SETTLE_S = 0.3, 2.0
#: Seconds after the drain and the end of running jobs after which the daemon ends without waiting for either.
OVERDUE_S = 1.5


@point("daemon.drain")
def drain_s() -> float:
    """Seconds that running jobs have."""
    return DRAIN_S


def see_off(reactor: Reactor, server: Server, requested: float, stop_listening: Callable[[], None]) -> None:
    """
    Give the clients time to read their last replies. Then read nothing more, and refuse the requests that were read.

    Args:
        requested: when the order to end came, by CLOCK_MONOTONIC.
        stop_listening: called before the last requests are refused.
    """
    give_up = max(time.monotonic() + FLUSH_S, requested + SETTLE_S)
    while not server.flushed and time.monotonic() < give_up:
        reactor.turn(0.05)
    server.part(all_of_them=True)
    # Before the workers, whose end may take a moment: a daemon that starts now finds the socket's path free, and a
    # client that connects gets an error at once.
    stop_listening()
    give_up = time.monotonic() + FLUSH_S
    while server.connections and time.monotonic() < give_up:
        reactor.turn(0.05)
