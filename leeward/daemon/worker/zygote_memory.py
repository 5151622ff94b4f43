"""
A zygote's memory as a file: its clones have it mapped, and so do the states of kernels, which lack what is in it.

Nobody can write the file. The descriptor is open until the last one that needs it is gone: the zygote, a keeper, a snapshot.
"""

from __future__ import annotations

import os


class ZygoteMemory:
    """
    Owns *fd*, and closes it when nobody has this object any more. *is_counted*: no zygote here has it, so its file counts
    for the user who has brought it.
    """

    __slots__ = ("__weakref__", "digest", "fd", "is_counted", "size")

    def __init__(self, fd: int, *, is_counted: bool = False) -> None:
        self.fd, self.is_counted = fd, is_counted
        self.size = os.fstat(fd).st_size
        self.digest = ""  # of its content, once it was asked for

    def __del__(self) -> None:
        os.close(self.fd)
