"""
Lists the names of a project on the host, each with the values by which a change is noticed.

Trust:     none in the names, some of which come from a sandbox: no link is followed, and no other mount is entered.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from leeward._native.beneath import open_beneath
from leeward.approvals.carrying.apply import beneath
from leeward.client.changes import FOLDER
from leeward.errors import BadRequest

#: Mode (with the type) and inode of a folder; of anything else also size and ctime, which a program can't set back.
NameSign = tuple[int, ...]

_PASSED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES)


def names_below(folder: int, is_skipped: Callable[[str], bool], most: int) -> dict[str, NameSign]:
    """
    All names in a folder, at any depth, but for skipped paths and what is below them. BadRequest if there are more than
    *most*. A folder that can't be opened is listed without its content.
    """
    found, todo = dict[str, NameSign](), [""]
    while todo:
        inner = todo.pop()
        try:
            fd = open_beneath(folder, os.fsencode(inner) or b".", FOLDER)
        except OSError as error:
            if error.errno in _PASSED:
                continue  # removed or replaced since it was listed, or not readable
            raise
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    path = f"{inner}/{entry.name}" if inner else entry.name
                    if is_skipped(path):
                        continue
                    try:
                        about = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    found[path] = _sign(about)
                    if stat.S_ISDIR(about.st_mode):
                        todo.append(path)
                    if len(found) > most:
                        raise BadRequest(f"a project that is synced has {most} names at most")
        finally:
            os.close(fd)
    return found


def sign_at(folder: int, path: str) -> NameSign | None:
    """The sign of one name; None if it doesn't exist, or if a part of the path is a link or another mount."""
    with beneath(folder, path) as fd:
        return None if fd is None else _sign(os.fstat(fd))


def _sign(about: os.stat_result) -> NameSign:
    if stat.S_ISDIR(about.st_mode):
        return about.st_mode, about.st_ino
    return about.st_mode, about.st_ino, about.st_size, about.st_ctime_ns
