"""
Files into /workspace before the job, and out of it after.

Runs in:   the job's process, after the last lock: what goes wrong here goes wrong
           inside. The daemon checks names before, and names and sizes again after.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Mapping, Sequence

from leeward.wire import job as wire

#: Bytes that `collect` brings back at most; the daemon has its own bound.
MAX_BYTES = 256 << 20


def lay(files: Mapping[str, bytes]) -> None:
    """
    Write *files* below the current folder, /workspace.
    """
    for name, content in files.items():
        if "/" in name:
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def give_stdin(content: bytes) -> None:
    """
    Make *content* what descriptor 0 reads; it is /dev/null where there is none.
    """
    if not content:
        return
    read, write = os.pipe()
    if len(content) <= 65536:  # the size of a new pipe; os.write below must not block
        os.set_blocking(write, False)
        try:
            if len(content) == os.write(write, content):
                os.dup2(read, 0)
                return
        except BlockingIOError:
            pass  # the user's pipes are full already, so this one is smaller: a file, then
        finally:
            os.close(read)
            os.close(write)
    else:
        os.close(read)
        os.close(write)
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


def collect(patterns: Sequence[str]) -> tuple[dict[str, bytes], bool]:
    """
    Regular files below /workspace that match, by name; and whether the file system is full.
    """
    found: dict[str, bytes] = {}
    left = MAX_BYTES
    for pattern in patterns:
        for name in sorted(glob.iglob(pattern, root_dir="/workspace", recursive=True)):
            path = os.path.join("/workspace", name)
            if name in found or not wire.is_plain_name(name) or path != os.path.realpath(path):
                continue  # by a link, it would be another file's content under this name
            if len(found) >= wire.MAX_FILES:
                return found, _full()
            content = _regular(name, left)
            if content is not None:
                found[name] = content
                left -= len(content)
    return found, _full()


def _regular(name: str, most: int) -> bytes | None:
    """
    The content of a regular file, never through a link as last component; None for anything else.
    """
    try:
        fd = os.open(os.path.join("/workspace", name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOENT, errno.EACCES, errno.ENXIO, errno.ENOTDIR):
            return None
        raise
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size > most:
        os.close(fd)
        return None
    with open(fd, "rb") as file:  # not earlier: it raises for a folder
        return file.read(most)


def _full() -> bool:
    space = os.statvfs("/workspace")
    return 0 == space.f_bavail or 0 == space.f_favail
