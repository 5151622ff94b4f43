"""
`--put` and `--collect`: copies files of the host into a job, and a job's files to the host.

Trust:     none in the names and contents that come back. Each file is made below the folder that the user named,
           without following a link there, nor another user's link on the way to it, and has the mode of any new file of
           this process, not its mode in the job.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

from leeward.base.closing import OwnedFd
from leeward.client.host_paths import PLACE, end_sparse, open_folder, write_sparse
from leeward.errors import quoted, reason_of
from leeward.wire.fields import MAX_FILE_COUNT, MAX_FILES
from leeward_cli.options import UsageError

_HERE = "/workspace/"

#: Short texts for the reasons in a result's `left_out`; leeward.LeftOutReason documents them.
_WHY = {
    "no_match": "nothing there", "hidden": "a hidden file", "folder": "a folder: NAME/** has what is in it",
    "link": "a link", "special": "not a regular file", "unreadable": "unreadable", "name": "a name that can't be sent",
    "too_large": "too large", "too_many": "one file too many", "ended": "the job had ended and couldn't be asked",
}

#: The greatest number of names in one line.
_NAMED = 6


def put(words: Iterable[str]) -> dict[str, bytes]:
    """
    The contents of the files that *words*, each HOST or HOST:INSIDE, name, by the names below /workspace.

    A folder stands for every regular file in it. Links in it are left out, so that no file outside of it is read, also
    if another program changes it meanwhile.
    """
    files: dict[str, bytes] = {}
    total = 0
    for word in words:
        host, inside = _split(word)
        try:
            for path, fd, name in _plain_files(host, inside, word):
                with open(fd, "rb", buffering=0) as file:
                    if not stat.S_ISREG(os.fstat(fd).st_mode):
                        raise UsageError(f"--put {quoted(word)}: {quoted(path)} is not a regular file")
                    if name in files:
                        raise UsageError(f"--put: two files would be {quoted(name)}")
                    if len(files) >= MAX_FILE_COUNT:
                        raise UsageError(f"--put {quoted(word)}: a job takes {MAX_FILE_COUNT} files at most")
                    files[name] = _content(file, word, MAX_FILES - total)
                    total += len(files[name])
        except OSError as error:
            where = f"{quoted(error.filename)}: " if error.filename not in (None, host) else ""
            raise UsageError(f"--put {quoted(word)}: {where}{reason_of(error)}") from None
    return files


def _split(word: str) -> tuple[str, str]:
    host, colon, inside = word.rpartition(":")
    if not colon or not host or os.path.lexists(word):  # a file of the host may have a colon in its name
        host, inside = word, ""
    return host, inside.removeprefix(_HERE).strip("/")


#: With O_NONBLOCK, so that a FIFO without a writer doesn't block.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def _plain_files(host: str, inside: str, word: str) -> Iterator[tuple[str, int, str]]:
    """The path on the host, a descriptor, and the name in the sandbox, of each regular file that *word* names."""
    try:
        name = inside or os.path.basename(os.path.abspath(host))
    except FileNotFoundError:
        raise UsageError(f"--put {quoted(word)}: the current folder was removed; name the file from /") from None
    if os.path.isdir(host):
        yield from _in_folder(host, os.open(host, _FILE | os.O_DIRECTORY), name)
    else:
        yield host, os.open(host, _FILE), name


def _in_folder(path: str, fd: int, name: str) -> Iterator[tuple[str, int, str]]:
    """The same of the files in the folder *fd*, a descriptor, which is closed."""
    with OwnedFd(fd):
        for each in sorted(os.listdir(fd)):
            mode = os.stat(each, dir_fd=fd, follow_symlinks=False).st_mode
            below, inside = os.path.join(path, each), os.path.normpath(os.path.join(name, each))
            if stat.S_ISREG(mode):
                yield below, os.open(each, _FILE | os.O_NOFOLLOW, dir_fd=fd), inside
            elif stat.S_ISDIR(mode):
                yield from _in_folder(below, os.open(each, _FILE | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=fd), inside)


def _content(file: IO[bytes], word: str, room: int) -> bytes:
    chunks, left = [], room + 1
    while left and (chunk := file.read(min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if not left:
        raise UsageError(f"--put {quoted(word)}: a job takes {MAX_FILES >> 20} MiB of files at most")
    return b"".join(chunks)


def bring(files: Mapping[str, bytes | memoryview], into: str, replace: bool) -> list[str]:
    """
    Write *files*, whose names and contents the job chooses, below the folder *into*, which is made if it is missing.

    Regular files that exist stay unless *replace*. Returns a line for each file that wasn't written.
    """
    top = open_folder(into, make=True)
    left = []
    with OwnedFd(top):
        for name, content in files.items():
            try:
                _write(top, name, content, replace)
            except FileExistsError:
                left.append(f"{quoted(name)} is there already and stays as it is; --into FOLDER replaces files")
            except OSError as error:
                left.append(f"{quoted(name)} was not written: {reason_of(error)}")
    return left


def left_out(names: Sequence[tuple[str, str]]) -> str:
    """One line about files that `collect` has left out, of which there are some: the name, which the job chooses, and why."""
    named = [f"{quoted(name)} ({_WHY.get(reason, reason)})" for name, reason in names[:_NAMED] if reason != "more"]
    rest = ", and more: --json lists them" if len(named) < len(names) else ""
    return f"not collected: {', '.join(named)}{rest}"


def _write(top: int, name: str, content: bytes | memoryview, replace: bool) -> None:
    """Write one file, completely or not at all."""
    *folders, last = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in (*folders, last)):
        raise OSError(errno.EINVAL, "not a relative name")
    parent = _parent(top, folders)
    made = f".leeward-{os.urandom(8).hex()}" if replace else last
    with OwnedFd(parent):
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent)
        try:
            with os.fdopen(fd, "wb", buffering=0):
                write_sparse(fd, content)
                end_sparse(fd)
            if replace:
                _must_be_plain(parent, last)
                os.rename(made, last, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(made, dir_fd=parent)
            raise


def _must_be_plain(parent: int, name: str) -> None:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "something other than a regular file has this name")


def _parent(top: int, folders: list[str]) -> int:
    """A descriptor, the caller's, of the folder *folders* below *top*; missing ones are made, and no link is followed."""
    at = os.open(".", PLACE | os.O_DIRECTORY, dir_fd=top)
    try:
        for name in folders:
            try:
                os.mkdir(name, 0o777, dir_fd=at)
            except FileExistsError:
                pass
            below = os.open(name, PLACE | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
    except BaseException:
        os.close(at)
        raise
    return at
