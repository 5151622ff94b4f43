"""
Who may have written a file or folder, besides its owner and root, by this host's database of users.

Folders:   who can change a folder can put another file in the place of one that is in it; in a sticky folder (/tmp) the
           file's owner alone can.
Rule:      nobody, or a group that has the owner alone: the owner's primary group, with the owner's name, without other
           members. Where the umask is 002, new files of a user may be written by such a group.
In doubt:  others may: the owner isn't in the database, or the file has an access list, whose mask is shown as the
           group's rights.
Source:    inode(7), acl(5), group(5), user_namespaces(7) on the overflow id
"""

from __future__ import annotations

import errno
import os
import stat

from leeward.base.closing import OwnedFd
from leeward.errors import BadRequest

_ACCESS_LIST = "system.posix_acl_access"

#: The owner that files have, in a user namespace, whose real owner isn't one of its users: root, for most folders.
_OVERFLOW = 65534


def others_write(place: int | str, about: os.stat_result) -> bool:
    """Whether others than owner and root can write to *place*, a descriptor or path without links, with the stat *about*."""
    if not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    return bool(about.st_mode & stat.S_IWOTH) or not _has_owner_alone(about.st_gid, about.st_uid) or _has_list(place)


def distrust(path: str, file: int, about: os.stat_result, uid: int) -> tuple[str, str]:
    """
    Why *path*, open as *file* with the stat *about*, may say what others than root and *uid* want, and the cure; or ""
    twice.
    """
    if about.st_uid not in (0, uid):
        return f"belongs to user {about.st_uid}", "it must be yours or root's"
    if others_write(file, about):
        return f"its mode {stat.S_IMODE(about.st_mode):04o} lets others write it", cure(path)
    ways = os.path.join(os.getcwd(), path), os.path.realpath(path)
    for folder in dict.fromkeys(each for way in ways for each in _folders(way)):
        about = os.stat(folder)
        if about.st_uid not in (0, uid, _OVERFLOW):
            return f"user {about.st_uid} can put another file in its place, in {folder!r}", "move it to a folder of yours"
        if not about.st_mode & stat.S_ISVTX and others_write(folder, about):
            return f"others can put another file in its place, in {folder!r}", cure(folder)
    return "", ""


def _folders(path: str) -> list[str]:
    """The folders above *path*, the lowest first."""
    found = []
    while path != (path := os.path.dirname(path)):
        found.append(path)
    return found


def cure(path: str) -> str:
    """The command after which no others write to *path*."""
    import shlex  # a start that refuses nothing doesn't need it

    return f"chmod go-w {shlex.quote(path)}"


def _has_owner_alone(group: int, owner: int) -> bool:
    import grp  # most files can be written by their owner alone
    import pwd

    try:
        user, found = pwd.getpwuid(owner), grp.getgrgid(group)
    except KeyError:
        return False
    return (group == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
            and not any(each.pw_gid == group and each.pw_uid != owner for each in pwd.getpwall()))


def _has_list(place: int | str) -> bool:
    try:
        os.getxattr(place, _ACCESS_LIST)
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.EOPNOTSUPP)
    return True


def trusted_content(path: str, most: int, uid: int, flags: int = 0) -> bytes:
    """
    The content of a configuration file, which is opened with *flags* too. OSError; BadRequest says, as what follows
    *path*, that others than root and *uid* can write it, or that it has more than *most* bytes.
    """
    # O_NONBLOCK, because the open of a FIFO would wait for a writer.
    with OwnedFd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)) as fd:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise BadRequest("is no regular file")
        why, help_ = distrust(path, fd, about, uid)
        if why:
            raise BadRequest(f"{why}; {help_}")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(most + 1)
    if len(content) > most:
        raise BadRequest(f"is larger than {most} bytes")
    return content
