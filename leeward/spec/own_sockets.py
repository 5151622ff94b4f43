"""
The places of leeward's own sockets, of which no sandbox is shown anything: one registry for all that listens.

Runs in:   whoever listens (the daemon, its exporter, the service for approvals), and the opener, which refuses folders
           in which such a place is. The daemon only names folders: another user's file system may never answer.
Trust:     none in another user's registry: it counts for sandboxes of that user alone.

The folder of a user's default sockets is such a place, with all that is in it. A socket elsewhere is registered by a
link to it in that folder. A place is known by its path, and by the inodes of itself and of the folders above it, which
a bind mount or a link doesn't change.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from leeward.spec.folders import within
from leeward.spec.paths import default_socket

#: The folder of the links, in the folder of the default sockets.
_LINKS = "sockets"


def folders_of(uid: int) -> tuple[str, ...]:
    """The folders in which *uid*'s default sockets may be."""
    if not uid:
        return (os.path.dirname(default_socket({}, 0)),)
    # Another user's runtime folder may be a file system that doesn't answer: it isn't looked at here.
    own = (os.path.dirname(default_socket(os.environ, uid)),) if uid == os.geteuid() else ()
    return tuple(dict.fromkeys((*own, f"/run/user/{uid}/leeward", f"/tmp/leeward-{uid}")))


def register(path: str) -> str:
    """
    Register this user's socket *path*. Returns the link, for `forget`; "" if none is needed.

    Raises OSError if the folder of the links can't be made, or another user can write to it.
    """
    path, uid = os.path.realpath(path), os.geteuid()
    own = os.path.dirname(default_socket(os.environ, uid))
    if os.path.dirname(path) == os.path.realpath(own):
        return ""
    folder = os.path.join(own, _LINKS)
    for each in (own, folder):
        os.makedirs(each, mode=0o700, exist_ok=True)
        about = os.lstat(each)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != uid or about.st_mode & 0o022:
            raise PermissionError(1, "others own this folder, or may write to it", each)
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if not os.path.lexists(os.readlink(os.path.join(folder, name))):
                os.unlink(os.path.join(folder, name))
    link = os.path.join(folder, hashlib.sha256(os.fsencode(path)).hexdigest()[:32])
    with contextlib.suppress(FileExistsError):  # of one that was killed
        os.symlink(path, link)
    return link


def forget(link: str) -> None:
    if link:
        with contextlib.suppress(OSError):
            os.unlink(link)


class OwnPlace:
    """
    A socket or folder of leeward's own: its real path, the device and inode of it and of each folder above it, and its
    device if the socket has another name there, else 0.
    """

    __slots__ = ("ids", "linked", "path")

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self.ids, self.linked = set[tuple[int, int]](), 0
        at = self.path
        with contextlib.suppress(OSError):
            while True:
                about = os.lstat(at)
                self.ids.add((about.st_dev, about.st_ino))
                if at == self.path and stat.S_ISSOCK(about.st_mode) and about.st_nlink > 1:
                    self.linked = about.st_dev
                if at == "/":
                    break
                at = os.path.dirname(at)

    def is_in(self, path: str, device: int, inode: int) -> bool:
        """Whether it may be reached by the folder *path*, which is *inode* of *device*."""
        return (within(self.path, path) or within(path, self.path) or (device, inode) in self.ids
                or device == self.linked != 0)


def places(sockets: Iterable[str], registries: Iterable[Sequence[Any]]) -> Iterator[OwnPlace]:
    """Leeward's own places: the paths *sockets*, and users' folders of `folders_of` but those that others have made."""
    for path in sockets:
        yield OwnPlace(path)
    for uid, folder in registries:
        try:
            about = os.lstat(folder)
        except OSError:
            continue
        if about.st_uid != uid or not stat.S_ISDIR(about.st_mode):
            continue
        yield OwnPlace(folder)
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(folder, _LINKS)):
                path = os.readlink(os.path.join(folder, _LINKS, name))
                if os.path.lexists(path):
                    yield OwnPlace(path)
