"""The paths of the service's files and its socket."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from leeward.apps.audit.journal import default_folder
from leeward.errors import Unsupported
from leeward.spec.writers import others_write


def state_folder(environ: Mapping[str, str]) -> str:
    """The folder of requests, rules and settings of this process's user, by XDG_STATE_HOME and HOME."""
    return default_folder(environ, "approvals")


def own_folder(path: str) -> None:
    """Make the folder *path* with mode 0700 unless it exists; Unsupported if another user can write to it."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or others_write(path, about):
        raise Unsupported("a folder for the operator's socket", have=f"{path}, which others own or may write",
                          need="a folder of this user's alone", cure=f"chmod 700 {path}")
