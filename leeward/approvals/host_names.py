"""
The names of a project on the host, each with the values by which a change is noticed.

Runs in:   the operator's program that decides.
Trust:     no link is followed and no other mount entered, since a sandbox may have made a part of these names.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from leeward._native.beneath import open_beneath
from leeward.client.changes import FOLDER
from leeward.errors import BadRequest

#: Type, mode and inode of a folder; of everything else also size and ctime, which nobody can set back.
NameSign = tuple[int, ...]

_PASSED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES)


def names_below(folder: int, is_skipped: Callable[[str], bool], most: int) -> dict[str, NameSign]:
    """
    Everything in a folder, at any depth; folders that can't be opened are listed without what is in them.

    Args:
        folder: its descriptor.
        is_skipped: of a path, whether it and what is below it are left out.
        most: names.

    Raises:
        BadRequest: there are more names.
        OSError: it can't be read.
    """
    found, todo = dict[str, NameSign](), [""]
    while todo:
        inner = todo.pop()
        try:
            fd = open_beneath(folder, os.fsencode(inner) or b".", FOLDER)
        except OSError as error:
            if error.errno in _PASSED:
                continue  # it was there a moment ago, or nobody may look
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
    """
    The sign of one name; None where nothing is, or where the way leads over a link or another mount.

    Args:
        folder: the project's descriptor.
        path: relative to it.

    Raises:
        OSError: it can't be looked at.
    """
    try:
        fd = open_beneath(folder, os.fsencode(path), os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
            return None
        raise
    try:
        return _sign(os.fstat(fd))
    finally:
        os.close(fd)


def _sign(about: os.stat_result) -> NameSign:
    if stat.S_ISDIR(about.st_mode):
        return about.st_mode, about.st_ino
    return about.st_mode, about.st_ino, about.st_size, about.st_ctime_ns
