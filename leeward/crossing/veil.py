"""
The veil: hides secrets in the view of the host, by their names.

Runs in:   the porter, before any process of a client is in the sandbox.
Leaves:    mounts that no process of the sandbox can remove.
Stands if: the host renames or makes files meanwhile. A mount on a file ends when the host puts another file in its
           place. So the folder is covered, and each of its other entries is mounted on the cover: a later file with a
           hidden name isn't visible either. Nor is a later file with any other name.
Source:    mount_namespaces(7): "a mount point in one namespace may be removed in another"
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward.crossing.walk import opened
from leeward.errors import LeewardError

#: Entries of one folder that are mounted, at most.
MOST = 4096

_OPTIONS = {"size": "4m", "nr_inodes": "65536"}
_ATTRIBUTES = MountAttr.NOSUID | MountAttr.NODEV
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hide(rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """
    Hide the names in the folders of *rows*, the outermost folder first, but for files whose names are there after a
    "!". Returns the folders that are covered now; LeewardError if one has secrets, and too many other entries.
    """
    covered = []
    for folder, names in rows:
        folder = os.path.realpath(folder)
        if folder != "/" and os.path.isdir(folder) and _hide(folder, [name.split("/") for name in names]):
            covered.append(folder)
    return covered


def _hide(folder: str, names: list[list[str]]) -> bool:
    try:
        entries = os.listdir(folder)
    except PermissionError:
        entries = None  # the folder can't be listed, but files in it may be readable
    if entries is not None and len(entries) > MOST:
        if any(fnmatchcase(entry, name[0]) for entry in entries for name in names):
            raise LeewardError(f"{folder!r:.200} has secrets, and more than {MOST} entries beside")
        return False
    with opened(os.open(folder, _LOOK)) as below:
        with opened(native.filesystem("tmpfs", {**_OPTIONS, "mode": f"{os.fstat(below).st_mode & 0o777:o}"},
                                      _ATTRIBUTES)) as cover:
            native.move_mount(cover, folder)
        if entries is not None:
            _fill(f"/proc/self/fd/{below}", entries, folder, names)
        native.remount(folder, _ATTRIBUTES | MountAttr.RDONLY)
    return True


def _fill(source: str, entries: list[str], target: str, names: list[list[str]]) -> None:
    """Mount the entries of the folder *source* in *target*, except *names*."""
    for entry in entries:
        inner = [name[1:] for name in names if fnmatchcase(entry, name[0])]
        shown = any(name[0].startswith("!") and fnmatchcase(entry, name[0][1:]) for name in names)
        if [] in inner and (not shown or os.path.isdir(f"{source}/{entry}")):
            continue
        try:
            _show(f"{source}/{entry}", f"{target}/{entry}", inner)
        except FileNotFoundError:
            continue  # the host has just removed the entry
        except LeewardError as error:
            if getattr(error, "errno", 0) != errno.ENOENT:
                raise


def _show(source: str, target: str, names: list[list[str]]) -> None:
    about = os.lstat(source)
    if stat.S_ISLNK(about.st_mode):
        os.symlink(os.readlink(source), target)
        return
    folder = stat.S_ISDIR(about.st_mode)
    if folder:
        os.mkdir(target, about.st_mode & 0o777)
    elif stat.S_ISREG(about.st_mode):
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    else:
        return  # a socket, a FIFO, a device
    if folder and names:
        try:
            entries = os.listdir(source)
        except PermissionError:
            return
        if len(entries) > MOST:
            raise LeewardError(f"{target!r:.200} has secrets, and more than {MOST} entries")
        _fill(source, entries, target, names)
        return
    with opened(native.copy(source)) as tree:
        native.move_mount(tree, target)
