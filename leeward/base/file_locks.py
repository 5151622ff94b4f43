"""
Files and folders that one process has at a time.

Runs in:   anywhere.
Source:    flock(2): a lock belongs to the open file, and ends with the last descriptor of it, however its process ends.
"""

from __future__ import annotations

import fcntl
import os

from leeward.base.closing import on_failure

#: How it is opened: a file that is made unless it exists, and a file or folder that has to be there; neither is a link.
MADE, THERE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def locked(path: str, flags: int = MADE, *, shared: bool = False, wait: bool = False) -> int:
    """
    A descriptor, the caller's, that holds the lock of the file or folder *path*. BlockingIOError if others hold it, unless
    this is to *wait*; OSError if it can't be opened.
    """
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    with on_failure(os.close, fd):
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    return fd
