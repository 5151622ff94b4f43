"""
The path of the daemon's socket.

Runs in:   anywhere; pure but for one check of /run/user and, in clients, the configuration files. The CLI's fast path
           imports it.
"""

from __future__ import annotations

import os

from leeward.spec.socket_key import configured

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping

#: The environment variable with the socket's path, for daemon and clients.
SOCKET_VARIABLE = "LEEWARD_SOCKET"

#: The environment variable with the number of one more user whose daemon a client trusts, beside root and itself.
TRUSTED_VARIABLE = "LEEWARD_TRUSTED_UID"


def default_socket(environ: Mapping[str, str], uid: int) -> str:
    """
    Return the default socket of *uid*'s daemon.

    Root's is /run/leeward/leeward.sock, any other user's is in $XDG_RUNTIME_DIR. A login
    without that variable (cron, su) uses the same folder in /run/user, or else one in
    /tmp, which daemon and clients only use if the folder and the peer belong to the user.
    """
    if uid == 0:
        return "/run/leeward/leeward.sock"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if not runtime.startswith("/"):
        runtime = f"/run/user/{uid}"
        if not os.access(runtime, os.W_OK | os.X_OK):
            return f"/tmp/leeward-{uid}/leeward.sock"
    return f"{runtime}/leeward/leeward.sock"


class OwnSocket(str):
    """
    The default socket of this process's user, if no socket was named. If no daemon answers there, a client may start
    one: leeward.client.autostart.
    """

    __slots__ = ()


def client_socket(explicit: str | os.PathLike[str] | None) -> str:
    """
    Return the socket that a client uses: *explicit*, else LEEWARD_SOCKET, else the socket that the configuration file
        of the user or of the system names, else the default.

    Raises:
        BadRequest: a configuration file isn't to be trusted, or its `socket` isn't plainly written.
    """
    named = os.fspath(explicit) if explicit is not None else ""
    uid = os.geteuid()
    named = named or os.environ.get(SOCKET_VARIABLE) or configured(os.environ.get("HOME", ""), uid)
    return named or OwnSocket(default_socket(os.environ, uid))
