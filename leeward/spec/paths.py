"""
Where the daemon's socket is.

Runs in:   anywhere; pure but for one look at /run/user. The CLI's fast path loads it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping

#: The variable that names a socket, for daemon and clients alike.
SOCKET_VARIABLE = "LEEWARD_SOCKET"

#: The variable that names a user, by number, whose daemon a client talks to beside root's and his own.
TRUSTED_VARIABLE = "LEEWARD_TRUSTED_UID"


def default_socket(environ: Mapping[str, str], uid: int) -> str:
    """
    The socket of *uid*'s daemon where nobody says otherwise.

    Root's is /run/leeward/leeward.sock, anybody else's in $XDG_RUNTIME_DIR. A login
    without that variable (cron, su) has the same folder under /run/user, or else one in
    /tmp, which daemon and clients only use if it and the peer are the user's own.
    """
    if uid == 0:
        return "/run/leeward/leeward.sock"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if not runtime.startswith("/"):
        runtime = f"/run/user/{uid}"
        if not os.access(runtime, os.W_OK | os.X_OK):
            return f"/tmp/leeward-{uid}/leeward.sock"
    return f"{runtime}/leeward/leeward.sock"


def client_socket(explicit: str | os.PathLike[str] | None) -> str:
    """
    The socket that a client uses: the one it was told, then LEEWARD_SOCKET, then the default.
    """
    named = os.fspath(explicit) if explicit is not None else ""
    return named or os.environ.get(SOCKET_VARIABLE) or default_socket(os.environ, os.geteuid())
