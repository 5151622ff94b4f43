"""
Text for an error: which users may connect to a socket to which this process may not connect.

Runs in:   the clients, after a connect(2) that was refused with EACCES; names come from this host's databases.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat

from leeward.errors import quoted


def who_may(path: str) -> str:
    """
    Text with the owner of the socket on *path* and the cure: to join the socket's group, or to let a group in by the
    daemon's key `group`.
    """
    try:
        about = os.stat(path)
    except OSError:
        return _of_folder(os.path.dirname(os.path.abspath(path)))
    owner, group = _user(about.st_uid), _group(about.st_gid)
    if about.st_mode & stat.S_IWGRP:
        return (f"it belongs to {owner} and to group {group}, whose members may connect; an administrator adds you by"
                f" `usermod -aG {group} {_user(os.geteuid())}`, and it takes a new login")
    return f"it belongs to {owner}, who alone may connect; the daemon's key `group` lets a group in"


def _of_folder(folder: str) -> str:
    """Text with the owner of the first folder on the path *folder* that this process may not enter, and the cure."""
    while True:
        above = os.path.dirname(folder)
        if above == folder or os.access(above, os.X_OK):
            break
        folder = above
    try:
        about = os.stat(folder)
    except OSError:
        return f"the folder {quoted(folder)} can't be seen"
    owner, group = _user(about.st_uid), _group(about.st_gid)
    if about.st_mode & stat.S_IXGRP:
        return (f"its folder {quoted(folder)} belongs to {owner} and to group {group}, whose members may enter; an"
                f" administrator adds you by `usermod -aG {group} {_user(os.geteuid())}`, and it takes a new login")
    return (f"its folder {quoted(folder)} belongs to {owner}, who alone may enter; the daemon's key `group` lets"
            " a group in")


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
