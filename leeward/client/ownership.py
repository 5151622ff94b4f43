"""Text for an error: which users may connect to a socket to which this process may not."""

from __future__ import annotations

import grp
import os
import pwd
import stat

from leeward.errors import quoted


def who_may(path: str) -> str:
    """The owner of the socket, or of the first folder before it that this process may not enter, and the cure: a group."""
    try:
        about, what, does, bit = os.stat(path), "it", "connect", stat.S_IWGRP
    except OSError:
        folder = os.path.dirname(os.path.abspath(path))
        while (above := os.path.dirname(folder)) != folder and not os.access(above, os.X_OK):
            folder = above
        try:
            about, what, does, bit = os.stat(folder), f"its folder {quoted(folder)}", "enter", stat.S_IXGRP
        except OSError:
            return f"the folder {quoted(folder)} can't be seen"
    owner, group = _user(about.st_uid), _group(about.st_gid)
    if about.st_mode & bit:
        return (f"{what} belongs to {owner} and to group {group}, whose members may {does}; an administrator adds you by"
                f" `usermod -aG {group} {_user(os.geteuid())}`, and it takes a new login")
    return f"{what} belongs to {owner}, who alone may {does}; the daemon's key `group` lets a group in"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
