"""Checks that no other user can replace the file or folder to which a path leads. path_resolution(7), inode(7)"""

from __future__ import annotations

import errno
import os
import stat

from leeward.errors import BadRequest, reason_of
from leeward.spec.writers import cure, others_write

#: The number of symbolic links that the kernel follows; path_resolution(7).
_MOST_LINKS = 40


def check(path: str, what: str) -> None:
    """
    Refuse the absolute *path* of the setting *what* if a user other than root and this process's user can change where
    it leads: BadRequest, with the folder or link at fault and the cure; also if it doesn't exist.

    Checks each folder and each symbolic link of the path, from / on. Users who can write to a folder can replace its
    entries, and the owner of a folder or link can do so whatever its mode is. In a sticky folder, such as /tmp, only
    the owners of the folder and of the entry can. So a sticky folder is accepted within the path, but not at its end,
    where other users could still add entries. There is no race: a component that passed can't be changed by other users
    later.
    """
    at, ahead, links = "/", _parts(path), 0
    while True:
        _check_one(at, os.lstat(at), is_last=not ahead, what=f"{what} {path!r}")
        if not ahead:
            return
        part = ahead.pop()
        name = os.path.dirname(at) if part == ".." else os.path.join(at, part)
        try:
            target = os.readlink(name) if os.path.islink(name) else None
            about = os.lstat(name)
        except OSError as error:
            raise BadRequest(f"{what} {path!r}: {name!r}: {reason_of(error)}") from None
        if target is None:
            at = name
            continue
        _check_owner(name, about, what=f"{what} {path!r}")
        links += 1
        if links > _MOST_LINKS:
            raise BadRequest(f"{what} {path!r}: {name!r}: {os.strerror(errno.ELOOP).lower()}")
        at = "/" if target.startswith("/") else at
        ahead += _parts(target)


def _parts(path: str) -> list[str]:
    """The components of *path* in reverse order, so that `pop` returns the next one."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _check_owner(at: str, about: os.stat_result, what: str) -> None:
    if about.st_uid not in (0, os.geteuid()):
        raise BadRequest(f"{what}: {at!r} belongs to uid {about.st_uid}, who could put something else in its place;"
                         f" it must be yours or root's: `chown -h {os.geteuid()} {at}`, or use another place")


def _check_one(at: str, about: os.stat_result, *, is_last: bool, what: str) -> None:
    _check_owner(at, about, what)
    if (is_last or not about.st_mode & stat.S_ISVTX) and others_write(at, about):
        to_do = "" if about.st_mode & stat.S_ISVTX else f"`{cure(at)}`, or "  # /tmp is everybody's
        raise BadRequest(f"{what}: {at!r} can be written by others (mode {stat.S_IMODE(about.st_mode):04o}), who could"
                         f" put something else in its place: {to_do}use another place")
