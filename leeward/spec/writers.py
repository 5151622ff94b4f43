"""
Who may have written a file or folder, besides its owner and root.

Runs in:   anywhere; asks this host's database of users where a group may write.
Rule:      nobody, or a group that has the owner alone: the owner's primary group, with the owner's name, without other
           members. Where the umask is 002, new files of a user may be written by such a group.
In doubt:  others may: the owner isn't in the database, or the file has an access list, whose mask is shown as the
           group's rights.
Source:    inode(7), acl(5), group(5)
"""

from __future__ import annotations

import errno
import os
import stat

_ACCESS_LIST = "system.posix_acl_access"


def others_write(place: int | str, about: os.stat_result) -> bool:
    """
    Whether other users than its owner and root can write to a file or folder.

    Args:
        place: a descriptor, or the path of what isn't a link.
        about: its stat.
    """
    if not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    return bool(about.st_mode & stat.S_IWOTH) or not _has_owner_alone(about.st_gid, about.st_uid) or _has_list(place)


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
