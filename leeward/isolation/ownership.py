"""
Who could put something else in the place of a path.

Runs in:   the daemon, before it trusts what lies there.
Source:    path_resolution(7), inode(7)
"""

from __future__ import annotations

import errno
import os
import stat

from leeward.errors import BadRequest

#: As many as the kernel follows.
_MOST_LINKS = 40


def check(path: str, what: str) -> None:
    """
    Refuse *path* if somebody other than root and our own user could change where it leads.

    Looks at each folder and at each symbolic link on the way, from / on: who may write to a folder
    may replace what is in it, and the owner of either may do so whatever its mode is. In a sticky
    folder, such as /tmp, only its owner and the entry's may: it will do on the way, but not at its
    end, where a new entry is as good as a changed one.

    What was looked at can't be changed by others meanwhile, so nothing is gained by being quick.

    Args:
        path: absolute.
        what: its name in errors.

    Raises:
        BadRequest: the folder or link that is in the way, and what to do about it.
    """
    at, ahead, links = "/", _parts(path), 0
    while True:
        _check_one(at, os.lstat(at), is_last=not ahead, what=f"{what} {path!r}")
        if not ahead:
            return
        part = ahead.pop()
        name = os.path.dirname(at) if ".." == part else os.path.join(at, part)
        try:
            target = os.readlink(name) if os.path.islink(name) else None
            about = os.lstat(name)
        except OSError as error:
            raise BadRequest(f"{what} {path!r}: {name!r}: {(error.strerror or '').lower()}") from None
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
    """
    The components of *path*, the next one last.
    """
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _check_owner(at: str, about: os.stat_result, what: str) -> None:
    if about.st_uid not in (0, os.geteuid()):
        raise BadRequest(f"{what}: {at!r} belongs to uid {about.st_uid}, who could put something else in its place;"
                         f" it must be yours or root's: `chown -h {os.geteuid()} {at}`, or use another place")


def _check_one(at: str, about: os.stat_result, *, is_last: bool, what: str) -> None:
    _check_owner(at, about, what)
    if about.st_mode & 0o022 and (is_last or not about.st_mode & stat.S_ISVTX):
        raise BadRequest(f"{what}: {at!r} can be written by others (mode {stat.S_IMODE(about.st_mode):04o}), who could"
                         f" put something else in its place: `chmod go-w {at}`, or use another place")
