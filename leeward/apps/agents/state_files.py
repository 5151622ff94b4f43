"""
Small files of the user's state, written atomically in a folder that is the user's alone.

Source:    rename(2): a reader sees the old file or the new one.
"""

from __future__ import annotations

import os
import stat

from leeward.apps.agents.reading import beginning
from leeward.base.whole_files import write_whole
from leeward.errors import LeewardError, Unsupported, quoted, reason_of

#: Bytes of such a file, at most.
MAX_STATE = 1 << 20


class StateNotWritten(LeewardError):
    """The user's state can't be written: no space is left, say."""


def own_folder(folder: str) -> str:
    """*folder*, made with mode 0700 as missing ones above, or Unsupported if others can enter or own it."""
    try:
        _make(folder)
        about = os.stat(folder)
    except OSError as error:
        raise Unsupported("a folder for the state of agents",
                          have=f"{quoted(folder)}: {reason_of(error)}",
                          need="one that can be made", cure="set XDG_STATE_HOME to a folder of yours, or for the"
                                                            " packages of `dependencies` XDG_CACHE_HOME") from None
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise Unsupported("a folder for the state of agents", have=f"{quoted(folder)}, which others may enter or own",
                          need="one of this user's with mode 0700", cure=f"chmod 700 {quoted(folder)}")
    return folder


def _make(folder: str) -> None:
    """As os.makedirs, which makes the folders above by the umask: their writers could replace the folder."""
    missing = []
    while folder and not os.path.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:  # another start has just made it, or it is a link to nothing
            pass


def write_at_once(folder: str, name: str, content: bytes, lasting: bool = True) -> None:
    """Replace the file *name* by *content*; with *lasting* wait for the disk. StateNotWritten: the old file is unchanged."""
    try:
        write_whole(os.path.join(folder, name), content, lasting=lasting)
    except OSError as error:
        raise StateNotWritten(f"{quoted(os.path.join(folder, name))} can't be written: {reason_of(error)}") from None


def read_state(folder: str, name: str) -> bytes | None:
    """The content of a file; None if it can't be opened, isn't a regular file, or has more than MAX_STATE bytes."""
    content = beginning(os.path.join(folder, name), MAX_STATE + 1)
    return content if content is not None and len(content) <= MAX_STATE else None
