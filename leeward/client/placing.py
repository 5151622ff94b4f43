"""
Puts a new file at its place on the host in one step. A program that is killed before leaves nothing of it.

The file has no name while it is written (O_TMPFILE). link(2) replaces nothing, so one that replaces another file gets a
temporary name for the moment between two system calls; where a file system has no files without a name (overlayfs
before Linux 6.5, NFS), from its beginning.
"""

from __future__ import annotations

import contextlib
import os
import sys


def temporary_name() -> bytes:
    """A random name: in a folder that a sandbox writes to, it could put a link of a known one that leads anywhere."""
    return b".leeward-%s.tmp" % os.urandom(8).hex().encode()


class NewFile:
    """
    An empty file in the folder *parent*, a descriptor that stays open. Nobody else can read it, or guess the name
    *temporary*.
    """

    def __init__(self, parent: int, temporary: bytes) -> None:
        self._parent, self._temporary, self._has_name = parent, temporary, False
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # not on this file system; any other reason is that of the next call as well
                self.fd = os.open(b".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=parent)
                return
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.fd = os.open(temporary, flags, 0o600, dir_fd=parent)
        self._has_name = True

    def put(self, name: bytes, *, replaces: bool) -> None:
        """Give the file its *name* in the folder. It *replaces* a file or link of that name; otherwise there must be none."""
        if not self._has_name:
            os.link(f"/proc/self/fd/{self.fd}", self._temporary if replaces else name, dst_dir_fd=self._parent,
                    follow_symlinks=True)
            if not replaces:
                return
            self._has_name = True
        if replaces:
            os.rename(self._temporary, name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
            self._has_name = False
        else:  # link(2) replaces nothing
            os.link(self._temporary, name, src_dir_fd=self._parent, dst_dir_fd=self._parent, follow_symlinks=False)

    def close(self) -> None:
        """Close the file; one without a place is removed."""
        os.close(self.fd)
        if self._has_name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._parent)


def put_link(parent: int, temporary: bytes, name: bytes, text: bytes, *, replaces: bool) -> None:
    """Put a symbolic link with *text* at its place, as NewFile.put does."""
    if not replaces:
        os.symlink(text, name, dir_fd=parent)
        return
    os.symlink(text, temporary, dir_fd=parent)
    try:
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        os.unlink(temporary, dir_fd=parent)
        raise
