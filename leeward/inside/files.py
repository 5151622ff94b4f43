"""Writes files to /workspace before a job runs. The daemon checks names before."""

from __future__ import annotations

import os
from collections.abc import Mapping

from leeward.points import point
from leeward.wire.patterns import WORKSPACE as WORKSPACE


@point("files.lay")
def lay(files: Mapping[str, bytes], below: str = "") -> None:
    """Write *files* below the folder *below*, or the current one, which is /workspace before the first job."""
    for name, content in files.items():
        name = os.path.join(below, name)
        if "/" in name:
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def give_stdin(content: bytes) -> None:
    """Make *content* the standard input; it is /dev/null if *content* is empty."""
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
            pass  # the user has too many pipes, so this one is smaller: use a file
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
