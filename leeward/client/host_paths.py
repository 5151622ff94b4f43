"""
Opens paths of the host that a user names, through links of that user's and of root's alone: whoever else can write to a
folder on the path, such as /tmp, could make it lead to any file of the user's (fs.protected_symlinks is off on some
systems, and looks at sticky folders only). All that writes a sandbox's files to the host begins here. Each name of a
path is opened below the folder that was opened before it, so nothing can be swapped between the check and the use.

Source:    open(2): O_PATH with O_NOFOLLOW opens a link itself; readlink(2) of such a descriptor takes an empty path. Other
           systems have no O_PATH, and a link is looked at by its name, twice: renaming one changes its ctime.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable

from leeward.base.closing import OwnedFd
from leeward.errors import RequestRejected

#: Links in one path, as path_resolution(7) has it.
_MOST_LINKS = 40
#: Flags of a descriptor that is a place, and is for nothing else.
if sys.platform == "linux":
    PLACE = os.O_PATH | os.O_CLOEXEC
else:
    PLACE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

#: Bytes that are written, or left out as a hole, together.
_BLOCK = 4096
_NOTHING = bytes(_BLOCK)


#: Gets the folder of a link, its name, and the result of lstat(2). Raises RequestRejected if the link mustn't be
#: followed.
LinkCheck = Callable[[str, str, os.stat_result], None]


def open_through(path: str, check: LinkCheck, *, make: bool = False) -> int:
    """
    A descriptor of what *path* leads to by links that *check* accepts; it may *make* folders on the way. With O_PATH on
    Linux; on another system what can't be read can't be opened, and *check* gets "" for a folder.
    """
    names, links = path.split("/")[::-1], 0
    here = os.open("/" if path.startswith("/") else ".", PLACE)
    try:
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            try:
                found = _look(here, name)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):  # another program has just made it
                    os.mkdir(name, dir_fd=here)
                found = _look(here, name)
            if isinstance(found, int):
                here = _instead(here, found)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            about, target = found
            folder = os.readlink(f"/proc/self/fd/{here}") if sys.platform == "linux" else ""
            check(folder, name, about)
            if folder.startswith("/proc/"):  # such as the fd/3 of a process, whose text is no path to open
                here = _instead(here, os.open(name, PLACE, dir_fd=here))
                continue
            if target is None:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
            names += target.split("/")[::-1]
            if target.startswith("/"):
                here = _instead(here, os.open("/", PLACE))
        return here
    except BaseException:
        os.close(here)
        raise


def _look(folder: int, name: str) -> int | tuple[os.stat_result, str | None]:
    """A descriptor of what has the *name* in *folder*; of a link what lstat(2) says, and its text, if it can be told."""
    if sys.platform == "linux":
        fd = os.open(name, PLACE | os.O_NOFOLLOW, dir_fd=folder)
        about = os.fstat(fd)
        if not stat.S_ISLNK(about.st_mode):
            return fd
        with OwnedFd(fd):
            try:
                text = os.readlink("", dir_fd=fd)
            except OSError as error:  # one of /proc, whose text is told as a path that is too long
                if error.errno != errno.ENAMETOOLONG:
                    raise
                text = None
    else:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(about.st_mode):
            return os.open(name, PLACE | os.O_NOFOLLOW, dir_fd=folder)  # and not if it is a link meanwhile
        text = os.readlink(name, dir_fd=folder)
        again = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (about.st_dev, about.st_ino, about.st_ctime_ns) != (again.st_dev, again.st_ino, again.st_ctime_ns):
            raise OSError(errno.EAGAIN, "it was replaced while it was read", name)
    return about, text


def _instead(former: int, latter: int) -> int:
    os.close(former)
    return latter


def open_own(path: str, *, make: bool = False) -> int:
    """As `open_through`, by links of this user and root; RequestRejected for another user's link."""
    def check(folder: str, name: str, about: os.stat_result) -> None:
        if about.st_uid not in (0, os.geteuid()):
            raise RequestRejected(f"{path!a:.200}: {os.path.join(folder, name)!a:.200} is a link of user"
                                  f" {about.st_uid}, and isn't followed; name what you mean")
    return open_through(path, check, make=make)


def open_folder(path: str, *, make: bool = False) -> int:
    """A descriptor, for reading, of the folder that *path* leads to, as `open_own` finds it."""
    found = open_own(path or ".", make=make)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(found)


def is_folder(path: str) -> bool:
    """Whether *path* leads to a folder, as `open_own` finds it."""
    try:
        found = open_own(path)
    except OSError:
        return False
    with OwnedFd(found):
        return stat.S_ISDIR(os.fstat(found).st_mode)


def write_sparse(fd: int, data: bytes | memoryview) -> None:
    """Write *data* to a new file, with holes for blocks of zeros, as in a sandbox. `end_sparse` sets the file's end."""
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        end = at
        while end < len(view) and view[end:end + _BLOCK] != _NOTHING:
            end += _BLOCK
        rest = view[at:end]
        while rest:
            rest = rest[os.write(fd, rest):]
        at = end
        while at < len(view) and view[at:at + _BLOCK] == _NOTHING:
            at += _BLOCK
        if at > end:
            os.lseek(fd, at - end, os.SEEK_CUR)


def end_sparse(fd: int) -> None:
    """Make the file end where `write_sparse` has stopped, which may be in a hole."""
    os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))
