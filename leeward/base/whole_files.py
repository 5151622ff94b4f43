"""
Small files that are read and replaced as a whole, and folders of them.

Runs in:   anywhere.
Source:    rename(2): a reader sees the old file or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
#: Tries to follow a name.
_TRIES = 3


def write_whole(path: str, content: bytes, mode: int = 0o600, *, lasting: bool = True) -> None:
    """
    Make *path* a file with *content*, in the place of what was there; with *lasting* the disk has it.

    OSError where that can't be: what was there is unchanged. What a process that is killed leaves begins with a point.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.urandom(8).hex()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            if lasting:
                os.fsync(fd)
        os.rename(beside, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = path  # a failed write names none
        try:
            os.unlink(beside)
        except OSError:
            pass
        raise


def read_whole(path: str, most: int) -> bytes | None:
    """The first *most* bytes of a file, which is no link; None if there is none. It doesn't wait for a FIFO's writer."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:  # of a folder's it closes it, too
            return file.read(most)
    except FileNotFoundError:
        return None


def followed(follow: Callable[[], _T], wrong: tuple[type[Exception], ...]) -> _T:
    """
    What *follow* returns, which reads a name and then what that stands for. It tries again where it finds that *wrong*:
    between both, the name may have got another meaning, and the former one have been removed.
    """
    for _ in range(_TRIES - 1):
        try:
            return follow()
        except wrong:
            pass
    return follow()


def names_in(folder: str) -> list[str]:
    """The names in *folder* that don't begin with a point; none where there is no folder."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return []
