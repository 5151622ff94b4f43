"""
The states of a connection, as a table.

Runs in:   the daemon; pure.
A pair that is missing is a bug of ours; `leeward.run.states.after` names it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ConnectionState(enum.Enum):
    """
    The life of a connection.
    """

    NEW = "new"          # has never asked for anything
    OPEN = "open"        # has asked for something
    AWAITED = "awaited"  # the daemon wants it to go, and has yet to hear its first request
    PARTING = "parting"  # the daemon wants it to go; what the kernel has of its requests is still taken
    ENDED = "ended"      # all that it sent was read; it is closed when all of that is answered
    CLOSED = "closed"


class ConnectionEvent(enum.Enum):
    ASKED = "asked"    # its first request is here
    PART = "part"      # the daemon wants it to go
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
    # A client that disconnects isn't waited for: nobody will read its answers.
    (ConnectionState.NEW, ConnectionEvent.END): ConnectionState.CLOSED,
    (ConnectionState.OPEN, ConnectionEvent.END): ConnectionState.CLOSED,
    # Of one that parts the end is our own doing: it gets its answers.
    (ConnectionState.AWAITED, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.PARTING, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.ENDED, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.NEW, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.OPEN, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.AWAITED, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.PARTING, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.ENDED, ConnectionEvent.CLOSED): ConnectionState.CLOSED,
}

#: It has asked for nothing yet.
SILENT = ConnectionState.NEW, ConnectionState.AWAITED
#: The kernel may have unread bytes of the client, which are served before the connection ends.
LEAVING = ConnectionState.AWAITED, ConnectionState.PARTING
