"""
The states of a connection, as a table.

Runs in:   the daemon; pure.
A pair that is missing is a bug of ours; `leeward.run.states.after` names it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ConnectionState(enum.Enum):
    """The life of a connection."""

    NEW = "new"          # has never asked for anything
    OPEN = "open"        # has asked for something
    AWAITED = "awaited"  # the daemon closes it after its first request
    PARTING = "parting"  # the daemon closes it when the requests that the kernel has are answered
    ENDED = "ended"      # everything that it sent was read; it is closed when all of it is answered
    CLOSED = "closed"


class ConnectionEvent(enum.Enum):
    ASKED = "asked"    # its first request is here
    PART = "part"      # the daemon closes it
    END = "end"        # the end of its stream was read
    CLOSED = "closed"  # by the client, by us, or by an error


CONNECTION: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.NEW, ConnectionEvent.ASKED): ConnectionState.OPEN,
    (ConnectionState.AWAITED, ConnectionEvent.ASKED): ConnectionState.PARTING,
    (ConnectionState.NEW, ConnectionEvent.PART): ConnectionState.AWAITED,
    (ConnectionState.OPEN, ConnectionEvent.PART): ConnectionState.PARTING,
    (ConnectionState.AWAITED, ConnectionEvent.PART): ConnectionState.AWAITED,
    (ConnectionState.PARTING, ConnectionEvent.PART): ConnectionState.PARTING,
    (ConnectionState.ENDED, ConnectionEvent.PART): ConnectionState.ENDED,
    # A client that disconnects is closed at once: nobody will read its answers.
    (ConnectionState.NEW, ConnectionEvent.END): ConnectionState.CLOSED,
    (ConnectionState.OPEN, ConnectionEvent.END): ConnectionState.CLOSED,
    # The end of a parting connection was caused by the daemon: the client gets its answers.
    (ConnectionState.AWAITED, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.PARTING, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.ENDED, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.NEW, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.OPEN, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.AWAITED, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.PARTING, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.ENDED, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
}

#: States of a connection that hasn't sent a request yet.
SILENT = ConnectionState.NEW, ConnectionState.AWAITED
#: States in which the kernel may have unread bytes of the client, which are served before the connection ends.
LEAVING = ConnectionState.AWAITED, ConnectionState.PARTING
