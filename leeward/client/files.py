# Made by ./dev generate
"""The files in a live sandbox, `box.files`, for blocking programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from leeward.base.protocols import Protocol
from leeward.client import file_calls, file_trees
from leeward.client.conversation import checked
from leeward.client.file_calls import Call, Content, FileChange, FileInfo, FileMatch, Found, P, Path, T, raw, shown
from leeward.client.file_trees import MOST_BYTES, Transfer
from leeward.client.waiting import in_thread, sleep
from leeward.errors import EditError
from leeward.wire.file_answers import MAX_ROWS
from leeward.wire.replies import Reply

# Imported in functions: what not every start needs; 46 ms of processor time for all of it.

#: The type that `list` returns. In the classes `list` is the method, so `list[FileInfo]` can't be written there.
Infos = list[FileInfo]

#: Seconds between two scans of a folder by `watch`.
_LOOKS_S = 0.5


class _Asks(Protocol):
    def ask(self, op: str, fields: Mapping[str, Any]) -> Reply: ...


class Files:
    """
    The files in a sandbox. A process inside the sandbox carries out each call, under the same locks as a job. So a path
    means what it means to a program in the sandbox, and leads nowhere else. A relative path begins at `/workspace`.
    Folders that lead to a path that is written are made.

    Errors of files are those of Python's own functions: FileNotFoundError, IsADirectoryError, NotADirectoryError,
    PermissionError, FileExistsError, else OSError with its errno. A call that takes too long, or longer than its
    *timeout* of at most 300 seconds, raises TimeoutError. A name that isn't UTF-8 is text as `os.fsdecode` returns it.
    """

    def __init__(self, sandbox: _Asks) -> None:
        self._sandbox = sandbox

    def _do(self, call: Call[T], *, waits: bool = False) -> T:
        """The result of *call* over the sandbox's connection. It *waits* if its steps read or write files of this host."""
        response: dict[str, Any] | None = None
        error: Exception | None = None
        while True:
            step = file_calls.advanced
            done, value = in_thread(step, call, response, error) if waits else step(call, response, error)
            if done:
                result: T = value
                return result
            op, fields = value
            try:
                response, error = self._ask(op, **fields), None
            except Exception as wrong:
                error = wrong

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return checked(file_calls.answer_of, op, fields, self._sandbox.ask(op, fields))

    def read(self, path: Path, *, offset: int = 0, size: int | None = None, lines: tuple[int, int] | None = None,
             limit: int = file_calls.MOST_READ) -> bytes:
        """
        Read a regular file, and return its content.

        Args:
            path: the file's path.
            offset: bytes to skip.
            size: bytes to read; all by default.
            lines: the first and the last line to read, counted from 1; a range beyond the file's end is cut.
            limit: bytes to read at most; OSError with EFBIG if there are more.
        """
        return self._do(file_calls.read(path, offset=offset, size=size, lines=lines, most=limit))

    def write(self, path: Path, data: Content, *, mode: int | None = None, exclusive: bool = False) -> int:
        """
        Write a file, and return the number of bytes. The new content replaces the old one only when it is complete:
        until then readers see the old file.

        Args:
            path: the file's path. A link is followed.
            data: bytes, text (written as UTF-8), a file open for reading bytes, or an iterable of bytes.
            mode: permission bits; by default those of the file that is replaced, or the usual ones for a new file.
            exclusive: raise FileExistsError if *path* exists.
        """
        return self._do(file_calls.write(path, data, mode=mode, exclusive=exclusive),
                        waits=not isinstance(data, (bytes, bytearray, memoryview, str)))

    def write_many(self, files: Mapping[P, bytes | bytearray | memoryview | str], *, mode: int | None = None) -> int:
        """
        Write many files by one call, each as `write` does, and return the number of bytes. FilesFailed, whose `errors`
        are by path, if some couldn't be written; all others were.

        Args:
            files: bytes or text (written as UTF-8), by path.
            mode: permission bits of all of them, as for `write`.
        """
        return self._do(file_calls.write_many(files, mode=mode))

    def read_many(self, paths: Iterable[P], *, limit: int = file_calls.MOST_READ) -> dict[P, bytes]:
        """
        Read many regular files by one call, and return their contents by path. FilesFailed if some couldn't be read:
        its `errors` are by path, and its `found` has the others.

        Args:
            paths: the files' paths; one that occurs twice is read once.
            limit: bytes to read at most, of all files together; OSError with EFBIG if there are more.
        """
        return self._do(file_calls.read_many(paths, limit=limit))

    def append(self, path: Path, data: Content) -> int:
        """Write *data*, as for `write`, at the end of a file, which is made if it is missing; returns its size in bytes."""
        return self._do(file_calls.append(path, data),
                        waits=not isinstance(data, (bytes, bytearray, memoryview, str)))

    def edit(self, path: Path, old: str | bytes, new: str | bytes) -> None:
        """
        Replace *old*, at most 1 MiB, by *new* in a file of at most 32 MiB, which has *old* exactly once: else
        EditError, whose `found` is how many times, and the file is unchanged.
        """
        before, after = (text.encode() if isinstance(text, str) else bytes(text) for text in (old, new))
        if not before:
            raise ValueError("there is no text to look for")
        found = (self._ask("file_edit", path=raw(path), old=before, new=after))["found"]
        if found != 1:
            raise EditError(shown(raw(path)), found)

    def list(self, path: Path = ".") -> Infos:
        """The entries of a folder, sorted by name; at most 100,000."""
        return [file_calls.info_of(row) for row in self._do(file_calls.entries(raw(path)))]

    def stat(self, path: Path, *, follow: bool = True) -> FileInfo:
        """The kind, size, mode and time of a path; of the file that it leads to if it is a link, unless *follow* is False."""
        answer = self._ask("file_stat", path=raw(path), follow=follow)
        return file_calls.info_of([raw(path), *answer["row"][1:]])

    def exists(self, path: Path) -> bool:
        """Whether the path exists; of a link, whether the file that it leads to exists."""
        try:
            self._ask("file_stat", path=raw(path), follow=True)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mkdir(self, path: Path, *, parents: bool = True, exist_ok: bool = False) -> None:
        """
        Make a folder, with those that lead to it unless *parents* is False. FileExistsError if it exists, unless
        *exist_ok*.
        """
        self._ask("file_mkdir", path=raw(path), parents=parents, there=exist_ok)

    def move(self, path: Path, to: Path) -> None:
        """Rename a file or folder, as `os.rename` does; where a rename isn't possible, copy and remove it."""
        self._ask("file_move", path=raw(path), to=raw(to))

    def copy(self, path: Path, to: Path, *, timeout: float = file_calls.LONG_S) -> None:
        """Copy a file, or a folder with all that is in it, with modes and times, in at most *timeout* seconds."""
        self._ask("file_copy", path=raw(path), to=raw(to), timeout=timeout)

    def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False,
               timeout: float = file_calls.LONG_S) -> None:
        """
        Remove a file, a link, or an empty folder; if *recursive*, a folder with all that is in it. FileNotFoundError if
        the path doesn't exist, unless *missing_ok*.
        """
        self._ask("file_remove", path=raw(path), recursive=recursive, missing=missing_ok, timeout=timeout)

    def glob(self, pattern: Path, *, path: Path = ".", limit: int = MAX_ROWS,
             timeout: float = file_calls.SEARCH_S) -> Found[str]:
        """
        The paths that match a pattern, as `glob.glob(..., recursive=True)` returns them, sorted; `more` says whether
        others match.

        Args:
            pattern: a pattern with `*`, `?`, `[...]`, and `**` for any number of folders.
            path: the folder where a relative pattern begins; the returned paths begin with *path*.
            limit: paths to return at most; no more than 4,000.
            timeout: seconds.
        """
        answer = self._ask("file_glob", path=raw(path), pattern=raw(pattern), most=limit, timeout=timeout)
        return Found(map(shown, answer["names"]), answer["more"])

    def grep(self, pattern: str | bytes, *, path: Path = ".", include: str = "", literal: bool = False,
             ignore_case: bool = False, limit: int = 1000, timeout: float = file_calls.SEARCH_S) -> Found[FileMatch]:
        """
        The lines of a file, or of all text files below a folder, that match a pattern; `more` says whether others do.

        Args:
            pattern: a Python regular expression, which is matched against bytes.
            path: the file or folder.
            include: a pattern such as `*.py`; files of other names are skipped.
            literal: search for *pattern* as plain text.
            ignore_case: ignore the case of ASCII letters.
            limit: lines to return at most; no more than 4,000.
            timeout: seconds.
        """
        answer = self._ask("file_grep", path=raw(path), include=include.encode("utf-8", "surrogateescape"),
                           pattern=pattern.encode() if isinstance(pattern, str) else pattern, literal=literal,
                           ignore_case=ignore_case, most=limit, timeout=timeout)
        return Found((FileMatch(shown(name), number, line.decode("utf-8", "replace"))
                      for name, number, line in answer["rows"]), answer["more"])

    def watch(self, path: Path = ".", *, interval: float = _LOOKS_S,
              timeout: float | None = None) -> Iterator[FileChange]:
        """
        Iterate over changes below a folder. The folder is scanned again and again, so the sandbox isn't idle meanwhile.

        Args:
            path: the folder; OSError with E2BIG if more than 4,000 names are below it.
            interval: seconds between two scans.
            timeout: seconds after which the iteration ends; None for no end.
        """
        until = None if timeout is None else time.monotonic() + timeout
        seen = file_calls.FileWatch(path)
        self._do(seen.look())
        return self._changes(seen, interval, until)

    def _changes(self, seen: file_calls.FileWatch, interval: float, until: float | None) -> Iterator[FileChange]:
        while (pause := _pause(interval, until)) is not None:
            sleep(pause)
            yield from self._do(seen.look())

    def upload(self, host: Path, inside: Path) -> Transfer:
        """
        Copy a file, or a folder with all that is in it, from this host, with modes and times; links in it as links. If
        *inside* is a folder already, the entries are added to it. Returns what was copied, and what was left out.
        """
        return self._do(file_trees.upload(host, inside), waits=True)

    def download(self, inside: Path, host: Path, *, limit: int = MOST_BYTES) -> Transfer:
        """
        Copy a file, or a folder with all that is in it, to this host, with modes and times; OSError with EFBIG if all
        files together have more bytes than *limit*. Nothing is written outside *host*, whatever is in the sandbox;
        links that could lead out of it, FIFOs and devices are left out. If *host* is a folder already, the entries are
        added to it. Returns what was copied, and what was left out.
        """
        return self._do(file_trees.download(inside, host, limit=limit), waits=True)

    def import_tar(self, source: BinaryIO | Path, inside: Path = ".") -> Transfer:
        """
        Unpack a tar archive, compressed or not, from a path on this host or a file open for reading bytes, into a
        folder of the sandbox, which is made if it doesn't exist. Returns what was unpacked, and what was left out.
        ValueError if it is no archive.
        """
        from leeward.client import file_tars  # takes 8 ms, with tarfile
        return self._do(file_tars.import_tar(source, inside), waits=True)

    def export_tar(self, inside: Path, target: BinaryIO | Path, *, limit: int = MOST_BYTES) -> Transfer:
        """
        Write a tar archive of a file or folder of the sandbox to a path on this host, whose ending .gz, .tgz, .xz or
        .txz compresses it, or to a file open for writing bytes. Names in it are relative to the folder; links that
        could lead out of the folder are left out. Returns what was written, and what was left out. The limit is as for
        `download`.
        """
        from leeward.client import file_tars  # as in `import_tar`
        return self._do(file_tars.export_tar(inside, target, limit=limit), waits=True)


def _pause(interval: float, until: float | None) -> float | None:
    """Seconds until the next scan; None if *until*, in time.monotonic() seconds, has passed."""
    if until is None:
        return interval
    left = until - time.monotonic()
    return min(interval, left) if left > 0 else None
