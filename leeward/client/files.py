"""
The files in a live sandbox, blocking and for asyncio: `box.files`.

Runs in:   anybody's program.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, BinaryIO

from leeward.client import file_calls, file_tars, file_trees
from leeward.client.file_calls import (
    LONG_S,
    MOST_READ,
    SEARCH_S,
    Call,
    Content,
    FileChange,
    FileInfo,
    FileMatch,
    FileWatch,
    Found,
    Path,
    T,
    answer_of,
)
from leeward.client.file_trees import MOST_BYTES, Transfer
from leeward.client.sandbox_calls import checked
from leeward.protocols import Protocol
from leeward.wire.file_answers import MAX_ROWS
from leeward.wire.replies import Reply

#: What `list` gives; there it would be the method's own name.
Infos = list[FileInfo]

#: Seconds between two looks of `watch`.
_LOOKS_S = 0.5


class _Asks(Protocol):
    def ask(self, op: str, fields: Mapping[str, Any], deadline: float | None = None) -> Reply: ...


class _AsyncAsks(Protocol):
    async def ask(self, op: str, fields: Mapping[str, Any]) -> Reply: ...


class Files:
    """
    The files in a sandbox. A process inside does each call, under the locks of any job there: so a path means what it
    means to a program in the sandbox, and leads nowhere else. A relative one begins at `/workspace`.

    What goes wrong with a file is raised as Python's own functions do: FileNotFoundError, IsADirectoryError,
    NotADirectoryError, PermissionError, FileExistsError, else OSError with its errno. TimeoutError says that a call
    took too long. Names that aren't UTF-8 are text as `os.fsdecode` has it.
    """

    def __init__(self, sandbox: _Asks) -> None:
        self._sandbox = sandbox

    def _do(self, call: Call[T]) -> T:
        told: dict[str, Any] | None = None
        error: Exception | None = None
        while True:
            try:
                op, fields = call.send(told) if error is None else call.throw(error)  # type: ignore[arg-type]  # None begins
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                told, error = checked(answer_of, op, fields, self._sandbox.ask(op, fields)), None
            except Exception as wrong:
                error = wrong

    def read(self, path: Path, *, offset: int = 0, size: int | None = None, lines: tuple[int, int] | None = None,
             limit: int = MOST_READ) -> bytes:
        """
        What is in a regular file.

        Args:
            path: of the file.
            offset: bytes to skip.
            size: bytes to read; all by default.
            lines: the first and the last line to read, from 1 on. Lines that aren't there are left out.
            limit: bytes; more than that is OSError with EFBIG.
        """
        return self._do(file_calls.read(path, offset=offset, size=size, lines=lines, most=limit))

    def write(self, path: Path, data: Content, *, mode: int | None = None, exclusive: bool = False) -> int:
        """
        Write a file, with the folders that lead to it. It takes its place when it is whole: who reads meanwhile sees
        what was there before.

        Args:
            path: of the file. A link is followed.
            data: bytes, text (as UTF-8), a file open for reading bytes, or an iterable of bytes.
            mode: permission bits; those of the file before it, or the usual ones, by default.
            exclusive: FileExistsError if something is there.

        Returns:
            How many bytes.
        """
        return self._do(file_calls.write(path, data, mode=mode, exclusive=exclusive))

    def append(self, path: Path, data: Content) -> int:
        """
        Write at the end of a file, which is made if it isn't there.

        Args:
            path: of the file.
            data: as for `write`.

        Returns:
            The file's size then.
        """
        return self._do(file_calls.append(path, data))

    def edit(self, path: Path, old: str | bytes, new: str | bytes) -> None:
        """
        Replace a text that occurs exactly once in a file.

        Args:
            path: of the file, at most 32 MiB.
            old: what is replaced, at most 1 MiB.
            new: what is there then.

        Raises:
            EditError: it isn't there, or more than once: `found` says how many times. Nothing is changed.
        """
        self._do(file_calls.edit(path, old, new))

    def list(self, path: Path = ".") -> Infos:
        """
        What is in a folder, by name; at most 100,000 entries.
        """
        return self._do(file_calls.list_folder(path))

    def stat(self, path: Path, *, follow: bool = True) -> FileInfo:
        """
        What is by this name.

        Args:
            path: of anything.
            follow: a link stands for what it leads to.
        """
        return self._do(file_calls.stat(path, follow=follow))

    def exists(self, path: Path) -> bool:
        """
        Is there something by this name? Of a link: where it leads.
        """
        return self._do(file_calls.exists(path))

    def mkdir(self, path: Path, *, parents: bool = True, exist_ok: bool = False) -> None:
        """
        Make a folder.

        Args:
            path: of the folder.
            parents: and those that lead to it.
            exist_ok: it may be there already.
        """
        self._do(file_calls.mkdir(path, parents=parents, exist_ok=exist_ok))

    def move(self, path: Path, to: Path) -> None:
        """
        Rename a file or folder, as `os.rename` does, or move it where that can't.

        Args:
            path: what is moved.
            to: its new name; folders that lead there are made.
        """
        self._do(file_calls.move(path, to))

    def copy(self, path: Path, to: Path, *, timeout: float = LONG_S) -> None:
        """
        Copy a file, or a folder with all that is in it, with modes and times.

        Args:
            path: what is copied.
            to: the copy's name; folders that lead there are made.
            timeout: seconds, at most 300.
        """
        self._do(file_calls.copy(path, to, timeout=timeout))

    def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False, timeout: float = LONG_S) -> None:
        """
        Remove a file, a link, or an empty folder.

        Args:
            path: what is removed.
            recursive: a folder with all that is in it.
            missing_ok: it may be gone already.
            timeout: seconds, at most 300.
        """
        self._do(file_calls.remove(path, recursive=recursive, missing_ok=missing_ok, timeout=timeout))

    def glob(self, pattern: Path, *, path: Path = ".", limit: int = MAX_ROWS,
             timeout: float = SEARCH_S) -> Found[str]:
        """
        Paths that match a pattern, as `glob.glob(..., recursive=True)`, sorted.

        Args:
            pattern: with `*`, `?`, `[...]`, and `**` for any number of folders.
            path: the folder where a relative pattern begins, and which is in front of the paths.
            limit: how many, at most 4,000.
            timeout: seconds, at most 300.

        Returns:
            A list, whose `more` says whether there are others.
        """
        return self._do(file_calls.glob(pattern, path=path, limit=limit, timeout=timeout))

    def grep(self, pattern: str | bytes, *, path: Path = ".", include: str = "", literal: bool = False,
             ignore_case: bool = False, limit: int = 1000, timeout: float = SEARCH_S) -> Found[FileMatch]:
        """
        Lines in which a pattern is, of a file or of all files below a folder that are text.

        Args:
            pattern: a regular expression of Python's; it sees bytes.
            path: the file or folder.
            include: a pattern such as `*.py` for names of files.
            literal: *pattern* is text to be found as it is.
            ignore_case: of ASCII letters.
            limit: lines, at most 4,000.
            timeout: seconds, at most 300; then TimeoutError.

        Returns:
            A list, whose `more` says whether there are others.
        """
        return self._do(file_calls.grep(pattern, path=path, include=include, literal=literal, ignore_case=ignore_case,
                                        limit=limit, timeout=timeout))

    def watch(self, path: Path = ".", *, interval: float = _LOOKS_S,
              timeout: float | None = None) -> Iterator[FileChange]:
        """
        Changes below a folder, as they are seen: it is looked at again and again, which counts as use of the sandbox.

        Args:
            path: the folder; OSError with E2BIG if more than 4,000 names are below it.
            interval: seconds between two looks.
            timeout: seconds after which there are no more; None is never.
        """
        until = None if timeout is None else time.monotonic() + timeout
        seen = FileWatch(path)
        self._do(seen.look())
        return self._changes(seen, interval, until)

    def _changes(self, seen: FileWatch, interval: float, until: float | None) -> Iterator[FileChange]:
        while (pause := _pause(interval, until)) is not None:
            time.sleep(pause)
            yield from self._do(seen.look())

    def upload(self, host: Path, inside: Path) -> Transfer:
        """
        Copy a file, or a folder with all that is in it, from this host, with modes and times.

        Args:
            host: the file or folder here. Links in a folder are copied as links.
            inside: the name in the sandbox; a folder that is there is filled.
        """
        return self._do(file_trees.upload(host, inside))

    def download(self, inside: Path, host: Path, *, limit: int = MOST_BYTES) -> Transfer:
        """
        Copy a file, or a folder with all that is in it, to this host, with modes and times. Nothing is written outside
        *host*, whatever is in the sandbox; links that could lead out of it, FIFOs and devices are left out.

        Args:
            inside: the file or folder in the sandbox.
            host: the name here; a folder that is there is filled.
            limit: bytes of all files together; more than that is OSError with EFBIG.
        """
        return self._do(file_trees.download(inside, host, limit=limit))

    def import_tar(self, source: BinaryIO | Path, inside: Path = ".") -> Transfer:
        """
        Unpack a tar archive into a folder of the sandbox.

        Args:
            source: a path here, or a file open for reading bytes; compressed or not.
            inside: the folder, which is made.

        Raises:
            ValueError: it is no archive.
        """
        return self._do(file_tars.import_tar(source, inside))

    def export_tar(self, inside: Path, target: BinaryIO | Path, *, limit: int = MOST_BYTES) -> Transfer:
        """
        Write a tar archive of a file or folder of the sandbox. Names in it are below the folder, and links that could
        lead out are left out.

        Args:
            inside: the file or folder.
            target: a path here, compressed if it ends in .gz, .tgz, .xz or .txz; or a file open for writing bytes.
            limit: as for `download`.
        """
        return self._do(file_tars.export_tar(inside, target, limit=limit))


def _pause(interval: float, until: float | None) -> float | None:
    """
    Seconds to the next look; None if there is none.
    """
    if until is None:
        return interval
    left = until - time.monotonic()
    return min(interval, left) if left > 0 else None


class AsyncFiles:
    """
    The files in a sandbox, for asyncio: the calls of `Files` with `await`, which describes them.
    """

    def __init__(self, sandbox: _AsyncAsks) -> None:
        self._sandbox = sandbox

    async def _do(self, call: Call[T], *, waits: bool = False) -> T:
        """
        Args:
            waits: its steps read or write files of this host, so they are taken in a thread.
        """
        told: dict[str, Any] | None = None
        error: Exception | None = None
        while True:
            step: Callable[[], Any] = _step(call, told, error)
            import asyncio  # a blocking client doesn't pay for it: half of its imports

            done, value = await asyncio.to_thread(step) if waits else step()
            if done:
                result: T = value
                return result
            op, fields = value
            try:
                told, error = checked(answer_of, op, fields, await self._sandbox.ask(op, fields)), None
            except Exception as wrong:
                error = wrong

    async def read(self, path: Path, *, offset: int = 0, size: int | None = None,
                   lines: tuple[int, int] | None = None, limit: int = MOST_READ) -> bytes:
        return await self._do(file_calls.read(path, offset=offset, size=size, lines=lines, most=limit))

    async def write(self, path: Path, data: Content, *, mode: int | None = None, exclusive: bool = False) -> int:
        return await self._do(file_calls.write(path, data, mode=mode, exclusive=exclusive),
                              waits=not isinstance(data, (bytes, bytearray, memoryview, str)))

    async def append(self, path: Path, data: Content) -> int:
        return await self._do(file_calls.append(path, data),
                              waits=not isinstance(data, (bytes, bytearray, memoryview, str)))

    async def edit(self, path: Path, old: str | bytes, new: str | bytes) -> None:
        await self._do(file_calls.edit(path, old, new))

    async def list(self, path: Path = ".") -> Infos:
        return await self._do(file_calls.list_folder(path))

    async def stat(self, path: Path, *, follow: bool = True) -> FileInfo:
        return await self._do(file_calls.stat(path, follow=follow))

    async def exists(self, path: Path) -> bool:
        return await self._do(file_calls.exists(path))

    async def mkdir(self, path: Path, *, parents: bool = True, exist_ok: bool = False) -> None:
        await self._do(file_calls.mkdir(path, parents=parents, exist_ok=exist_ok))

    async def move(self, path: Path, to: Path) -> None:
        await self._do(file_calls.move(path, to))

    async def copy(self, path: Path, to: Path, *, timeout: float = LONG_S) -> None:
        await self._do(file_calls.copy(path, to, timeout=timeout))

    async def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False,
                     timeout: float = LONG_S) -> None:
        await self._do(file_calls.remove(path, recursive=recursive, missing_ok=missing_ok, timeout=timeout))

    async def glob(self, pattern: Path, *, path: Path = ".", limit: int = MAX_ROWS,
                   timeout: float = SEARCH_S) -> Found[str]:
        return await self._do(file_calls.glob(pattern, path=path, limit=limit, timeout=timeout))

    async def grep(self, pattern: str | bytes, *, path: Path = ".", include: str = "", literal: bool = False,
                   ignore_case: bool = False, limit: int = 1000, timeout: float = SEARCH_S) -> Found[FileMatch]:
        return await self._do(file_calls.grep(pattern, path=path, include=include, literal=literal,
                                              ignore_case=ignore_case, limit=limit, timeout=timeout))

    async def watch(self, path: Path = ".", *, interval: float = _LOOKS_S,
                    timeout: float | None = None) -> AsyncIterator[FileChange]:
        """
        `async for change in box.files.watch()`; the first look is taken when it is asked for its first change.
        """
        until = None if timeout is None else time.monotonic() + timeout
        seen = FileWatch(path)
        await self._do(seen.look())
        while (pause := _pause(interval, until)) is not None:
            import asyncio

            await asyncio.sleep(pause)
            for change in await self._do(seen.look()):
                yield change

    async def upload(self, host: Path, inside: Path) -> Transfer:
        return await self._do(file_trees.upload(host, inside), waits=True)

    async def download(self, inside: Path, host: Path, *, limit: int = MOST_BYTES) -> Transfer:
        return await self._do(file_trees.download(inside, host, limit=limit), waits=True)

    async def import_tar(self, source: BinaryIO | Path, inside: Path = ".") -> Transfer:
        return await self._do(file_tars.import_tar(source, inside), waits=True)

    async def export_tar(self, inside: Path, target: BinaryIO | Path, *, limit: int = MOST_BYTES) -> Transfer:
        return await self._do(file_tars.export_tar(inside, target, limit=limit), waits=True)


def _step(call: Call[Any], told: dict[str, Any] | None, error: Exception | None) -> Callable[[], tuple[bool, Any]]:
    """
    The next step of *call*: is it done, and its next request or its result.
    """
    def step() -> tuple[bool, Any]:
        try:
            return False, call.send(told) if error is None else call.throw(error)  # type: ignore[arg-type]  # None begins
        except StopIteration as end:
            return True, end.value
    return step
