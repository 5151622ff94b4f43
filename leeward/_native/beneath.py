"""Opens files below a folder, and none outside of it, by openat2(2), Linux 5.6. In porter and client."""

from __future__ import annotations

import errno
import os

from leeward._native._shim import lib

#: RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH.
_NO_SYMLINKS = 0x04
_RESOLVE = 0x01 | 0x02 | _NO_SYMLINKS | 0x08
#: AT_FDCWD, for absolute paths.
_HERE = -100
#: RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT.
_AS_ROOT = 0x01 | 0x02 | 0x10


def open_in_root(root: int, path: bytes, flags: int) -> int:
    """As `open_beneath`, but links and `..` are followed as by a process whose root folder is *root*."""
    return _open(root, path, flags, 0, _AS_ROOT)


def open_beneath(folder: int, path: bytes, flags: int, mode: int = 0, *, links: bool = False) -> int:
    """
    Open the relative *path* in *folder*: no mount is crossed, no `..` leads out, and no link is followed, or with
    *links* only those that stay in *folder*. *mode* is for a file that is made. The caller owns the descriptor, which
    is close-on-exec. OSError has the errno of openat2(2): ELOOP for a link, EXDEV for a path that leads out of
    *folder*.
    """
    return _open(folder, path, flags, mode, _RESOLVE & ~_NO_SYMLINKS if links else _RESOLVE)


def open_plain(path: str, flags: int) -> int:
    """Open the absolute *path*, on which no link may lie; errors as `open_beneath`."""
    return _open(_HERE, os.fsencode(path), flags, 0, _NO_SYMLINKS)


def _open(folder: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
    found = -errno.EINVAL if b"\0" in path else int(lib.lw_open_beneath(folder, path, flags | os.O_CLOEXEC, mode, resolve))
    if found < 0:
        raise OSError(-found, os.strerror(-found), os.fsdecode(path))
    return found
