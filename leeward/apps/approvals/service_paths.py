"""The paths of the service's files and its socket."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from leeward.apps.audit.journal import default_folder
from leeward.errors import Unsupported
from leeward.spec.paths import default_socket
from leeward.spec.writers import others_write

#: The environment variable with the path of the operator's socket.
SOCKET_VARIABLE = "LEEWARD_APPROVALS_SOCKET"


def state_folder(environ: Mapping[str, str]) -> str:
    """The folder of requests, rules and settings of this process's user, by XDG_STATE_HOME and HOME."""
    return default_folder(environ, "approvals")


def operator_socket(explicit: str | None, environ: Mapping[str, str], uid: int) -> str:
    """
    The path of the operator's socket: *explicit*, else LEEWARD_APPROVALS_SOCKET, else `approvals.sock` in
    $XDG_RUNTIME_DIR/leeward, else beside the default socket of the user's daemon.
    """
    named = explicit or environ.get(SOCKET_VARIABLE, "")
    if named:
        return named
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return os.path.join(runtime, "leeward", "approvals.sock")
    return os.path.join(os.path.dirname(default_socket(environ, uid)), "approvals.sock")


def own_folder(path: str) -> None:
    """Make the folder *path* with mode 0700 unless it exists; Unsupported if another user can write to it."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or others_write(path, about):
        raise Unsupported("a folder for the operator's socket", have=f"{path}, which others own or may write",
                          need="a folder of this user's alone", cure=f"chmod 700 {path}")
