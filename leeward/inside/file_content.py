"""
The content of files: reads and writes it in pieces, appends to it, and edits it. Paths are bytes.

A file is opened without blocking, and refused if it isn't a regular file. A file that is written has another name in
the same folder until it is whole; then it is renamed. One that comes in several pieces has none until then, where its file
system can do that (O_TMPFILE): so nothing is left of it if this process is killed. A file that is read or written in
several pieces stays open under a handle, so that all pieces are of one file even if its name changes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from leeward.inside import answer
from leeward.wire.file_answers import CHUNK, MAX_HANDLE, MAX_ROWS, MAX_TIME
from leeward.wire.file_batches import FOUND, files_in, found_of

#: Files that are open for pieces at once, at most. With more, the least recently used one is closed.
MOST_HANDLES = 64
#: Bytes of a file that is edited, at most: two copies of it are in memory meanwhile.
MOST_EDITED = 32 << 20
#: Names of files that a batch to write reads from folders at most, and folders above one that it makes by another name;
#: and of those that it locks.
_MOST_NAMES, _MOST_ABOVE, _MOST_LOCKED = 8000, 16, 32

#: Bytes of a file that are read before its size is asked. Files of a folder from which on it is listed, and how many of its
#: names then for each of them.
_SMALL, _LISTED_FROM, _LISTED = 16 << 10, 8, 4

_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MADE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: What no file is called.
_NO_NAMES = frozenset((b"", b".", b".."))
#: The name of a file that isn't complete, of its folder with a slash and a word.
_BESIDE = b"%b.leeward-%b.tmp"
#: That of a batch's folder.
_OF_BATCH = re.compile(rb"\.leeward-[0-9a-f]{16}-\d+\.tmp")

Fields = Mapping[str, Any]
#: One of a batch: its number, path, permission bits or -1, content.
_File = tuple[int, bytes, int, memoryview]
#: Where a folder of a batch is, with a slash at its end; if it was missing, the files in it and in others below the first
#: missing one.
_At = tuple[bytes, "list[_File] | None"]
_TOPS: Mapping[bytes, _At] = {b"": (b"", None), b"/": (b"/", None)}
#: What is told of an error.
Told = Callable[["OSError | ValueError"], Mapping[str, Any]]
Remove = Callable[[bytes, bool, bool], Any]


def failed(number: int, why: str = "") -> OSError:
    return OSError(number, why or os.strerror(number))


def regular(there: os.stat_result) -> None:
    """
    Raises:
        OSError: not a regular file.
    """
    if stat.S_ISREG(there.st_mode):
        return
    raise failed(errno.EISDIR) if stat.S_ISDIR(there.st_mode) else failed(errno.EINVAL, "not a regular file")


def opened(path: bytes, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
    if not flags & os.O_CREAT or os.path.exists(path):
        regular(os.stat(path))  # checked before, because opening a FIFO or a device can have an effect
    fd = os.open(path, flags | _OPEN, 0o666)
    try:
        there = os.fstat(fd)
        regular(there)
    except BaseException:
        os.close(fd)
        raise
    return fd, there


class _DroppedOnError:
    """A file that is dropped if what is done with it fails. No generator, which takes ten times as long."""

    def drop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        """As usual."""

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        if kind is not None:
            self.drop()


def time_of(there: os.stat_result) -> int:
    """The time of a file's last change in nanoseconds; it may have one that no answer holds."""
    return min(max(0, there.st_mtime_ns), MAX_TIME)


class FileReading(_DroppedOnError):
    """A file that is read in pieces, up to the size that it had at first. *first* and *last*: as in the request."""

    def __init__(self, path: bytes, first: int = 0, last: int = 0) -> None:
        self.fd, self.there = opened(path)
        self.begin, self.end = 0, self.there.st_size
        with self:
            if not self.end:
                self.end = self._unsized()
            if first or last:
                self.begin, self.end = _span(self.fd, self.end, max(1, first), last)

    def _unsized(self) -> int:
        """The size of a file that reports none, such as those of /proc; at most a chunk."""
        size = 0
        while size < CHUNK and (data := os.pread(self.fd, CHUNK - size, size)):
            size += len(data)
        return size

    def take(self, offset: int, size: int) -> bytes:
        offset = max(offset, self.begin)
        size = max(0, min(size, self.end - offset))
        data = os.pread(self.fd, size, offset)
        while data and len(data) < size and (more := os.pread(self.fd, size - len(data), offset + len(data))):
            data += more
        if len(data) < size:
            self.end = offset + len(data)  # the file was truncated meanwhile
        return data

    def drop(self) -> None:
        os.close(self.fd)


def _span(fd: int, end: int, first: int, last: int) -> tuple[int, int]:
    """The offsets at which line *first* begins and *last* ends; 0 is the last line."""
    seen, at, begin = 0, 0, 0 if first == 1 else -1
    while at < end:
        chunk = os.pread(fd, min(CHUNK, end - at), at)
        if not chunk:
            break
        count = chunk.count(b"\n")
        if begin < 0 and seen + count >= first - 1:
            begin = at + _nth(chunk, first - 1 - seen) + 1
        if last and seen + count >= last:
            stop = at + _nth(chunk, last - seen) + 1
            return (begin, stop) if 0 <= begin <= stop else (stop, stop)
        seen, at = seen + count, at + len(chunk)
    return (begin, at) if begin >= 0 else (at, at)


def _nth(chunk: bytes, count: int) -> int:
    at = -1
    for _ in range(count):
        at = chunk.index(b"\n", at + 1)
    return at


class FileWriting(_DroppedOnError):
    """
    A file that is written in pieces under another name. If *new*, its path must not exist. *mode* -1 keeps that of the
    file that is replaced, *time* -1 is now. The other name has the *word*, a random one by default. One that takes *long*
    has no name meanwhile.
    """

    def __init__(self, path: bytes, *, new: bool = False, mode: int = -1, time: int = -1, word: bytes = b"",
                 long: bool = False) -> None:
        self._new, self._time = new, time
        self.size = 0
        before, path = _in_place(path, new)
        if mode < 0 and before is not None:
            mode = before.st_mode
        self.path = path
        cut = path.rfind(b"/") + 1
        if path[cut:] in _NO_NAMES:
            raise failed(errno.EISDIR)
        self._mode = mode = mode & 0o777 if mode >= 0 else -1  # what open(2) makes of 0666
        self._beside = _BESIDE % (path[:cut], word or os.urandom(8).hex().encode())
        fd = _unnamed(path[:cut], mode) if long else -1
        self._named = fd < 0
        self.fd = _made(self._beside, mode) if self._named else fd

    def put(self, offset: int, data: bytes | memoryview) -> None:
        while data:
            count = os.pwrite(self.fd, data, offset)
            data, offset = memoryview(data)[count:], offset + count
        if offset > self.size:
            self.size = offset

    def finish(self) -> None:
        try:
            if self._mode >= 0:
                os.fchmod(self.fd, self._mode)
            if self._time >= 0:
                os.utime(self.fd, ns=(self._time, self._time))
            if not self._named:  # the folder is ignored, since the path is absolute; without one link(2) would follow nothing
                os.link(b"/proc/self/fd/%d" % self.fd, self.path if self._new else self._beside, src_dir_fd=self.fd)
                self._named = not self._new
            elif self._new:
                os.link(self._beside, self.path, follow_symlinks=False)
                os.unlink(self._beside)
            if not self._new:
                os.rename(self._beside, self.path)
        except BaseException:
            self.drop()
            raise
        os.close(self.fd)

    def drop(self) -> None:
        os.close(self.fd)
        if self._named:
            _unlink(self._beside)


def _made(beside: bytes, mode: int) -> int:
    """A new file, which others can't open where it will have another *mode* than usual; and the folders that lead to it."""
    try:
        return os.open(beside, _MADE, _allowed(mode))
    except FileNotFoundError:
        os.makedirs(beside[:beside.rfind(b"/") + 1], exist_ok=True)
        return os.open(beside, _MADE, _allowed(mode))


def _allowed(mode: int) -> int:
    return 0o666 if mode < 0 else 0o600


def _unnamed(folder: bytes, mode: int) -> int:
    """The same of a file without a name; -1 where the file system has none such."""
    os.makedirs(folder or b".", exist_ok=True)
    try:
        return os.open(folder or b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, _allowed(mode))
    except OSError:  # for any other reason the next call fails as well
        return -1


def _unlink(beside: bytes) -> None:
    with contextlib.suppress(OSError):  # the file was removed or moved meanwhile
        os.unlink(beside)


def _in_place(path: bytes, new: bool) -> tuple[os.stat_result | None, bytes]:
    """
    The stat of the file that a file written to *path* replaces, None if there is none; and the path of both, which is no
    link. OSError if it must stay, or isn't a regular file.
    """
    try:
        before = os.lstat(path)
        if stat.S_ISLNK(before.st_mode):
            if new:
                raise failed(errno.EEXIST)
            path = os.path.realpath(path)
            before = os.stat(path)
    except FileNotFoundError:
        return None, path
    if new:
        raise failed(errno.EEXIST)
    regular(before)
    if not os.access(path, os.W_OK):
        raise failed(errno.EACCES)
    return before, path


class Handles:
    """The files that are read or written in pieces, by number; the least recently used one comes first."""

    def __init__(self) -> None:
        self._open: dict[int, FileReading | FileWriting] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: FileReading | FileWriting) -> int:
        """Add a file. Returns its number, which is random, so that it doesn't repeat one of an earlier process."""
        while len(self._open) >= MOST_HANDLES:
            self._open.pop(next(iter(self._open))).drop()
        number = 0
        while not number or number in self._open:
            number = int.from_bytes(os.urandom(8), "big") & MAX_HANDLE
        self._open[number] = one
        return number

    def take(self, number: int) -> FileReading | FileWriting:
        """Remove and return the file with this number. OSError if its process has ended, or other files took its place."""
        one = self._open.pop(number, None)
        if one is None:
            raise failed(errno.ESTALE, "the file that was being read or written is closed")
        return one

    def put_back(self, number: int, one: FileReading | FileWriting) -> None:
        self._open[number] = one


def read(call: Fields, handles: Handles) -> dict[str, Any]:
    number = call["handle"]
    one = handles.take(number) if number else FileReading(call["path"], call["first"], call["last"])
    with one:
        if not isinstance(one, FileReading):
            raise failed(errno.EBADF)
        data = one.take(call["offset"], call["size"])
    at = max(call["offset"], one.begin)
    told = {"data": data, "at": at, "end": one.end, "mode": stat.S_IMODE(one.there.st_mode),
            "time": time_of(one.there)}
    if at + len(data) >= one.end:
        one.drop()
        return {**told, "handle": 0}
    if number:
        handles.put_back(number, one)
    return {**told, "handle": number or handles.add(one)}


def write(call: Fields, handles: Handles) -> dict[str, Any]:
    number = call["handle"]
    one = handles.take(number) if number else FileWriting(call["path"], new=call["new"], mode=call["mode"],
                                                      time=call["time"], long=call["more"])
    with one:
        if not isinstance(one, FileWriting):
            raise failed(errno.EBADF)
        one.put(call["offset"], call["data"])
    if not call["more"]:
        one.finish()
        return {"handle": 0, "size": one.size}
    if number:
        handles.put_back(number, one)
    return {"handle": number or handles.add(one), "size": one.size}


class _Batch:
    """
    Files that are written together. A missing folder has another name until all that belongs into it is there, so that its
    files don't need one each. The first are sticky and locked meanwhile: so what is left of those, if their process is
    killed, the next batch removes that makes a folder there. One that is there is read once, for its second file, so that new
    files need no look each.
    """

    def __init__(self, remove: Remove) -> None:
        self._remove = remove
        self._word, self._left = os.urandom(8).hex().encode(), _MOST_NAMES
        self._at = {**_TOPS}
        self._missing: dict[bytes, tuple[bytes, list[_File]]] = {}  # by their present names
        self._marked: dict[bytes, tuple[int, int]] = {}  # those folders, and the modes that they will have
        self._swept = set[bytes]()
        self._made = list[bytes]()  # these, and the folders in them
        self._again = list[_File]()
        self._named = 0
        self._in: dict[bytes, set[bytes] | None] = {}  # None where every file needs a look
        self._once = set[bytes]()

    def write(self, file: _File) -> None:
        number, path, mode, content = file
        cut = path.rfind(b"/") + 1
        folder, name = path[:cut], path[cut:]
        at, files = self._at.get(folder) or self._find(folder)
        if files is not None and name not in _NO_NAMES:
            try:
                _write_new(at + name, mode, content)
            except FileExistsError:  # the batch has it twice
                self.replace(file, at + name)
            files.append(file)
        elif files is None and self._lacks(folder, name):
            beside = _BESIDE % (folder, b"%b%d" % (self._word, number))
            _write_new(beside, mode, content)
            try:
                os.rename(beside, path)
            except BaseException:
                _unlink(beside)
                raise
        else:
            self.replace(file, path)

    def replace(self, file: _File, path: bytes) -> None:
        number, _, mode, content = file
        one = FileWriting(path, mode=mode, word=b"%b%d" % (self._word, number))
        with one:
            one.put(0, content)
        one.finish()

    def end(self) -> list[_File]:
        """Give the missing folders their names. Returns the files that weren't written, since something had such a name."""
        again, here = list[_File](), list[bytes]()
        for there, (folder, files) in self._missing.items():
            try:
                os.rename(there, folder)
            except OSError:
                again += files
                here.append(there)
        for _, path, *_ in again:
            cut = path.rfind(b"/") + 1
            _unlink(self._at[path[:cut]][0] + path[cut:])
        for folder in reversed(self._made if here else ()):
            if folder.startswith(tuple(here)):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        for fd, mode in self._marked.values():
            with contextlib.suppress(OSError):  # it may be another's by now
                os.fchmod(fd, mode)
            os.close(fd)
        self._again += again
        self._missing, self._marked, self._made, self._at = {}, {}, [], {**_TOPS}
        return self._again

    def _find(self, folder: bytes) -> _At:
        cut = folder.rfind(b"/", 0, -1) + 1
        above, name = folder[:cut], folder[cut:-1]
        found: _At = folder, None
        if name not in _NO_NAMES and folder.count(b"/") <= _MOST_ABOVE:
            at, files = self._at.get(above) or self._find(above)
            if files is None:
                found = self._missing_one(above, folder)
            else:
                found = at + name + b"/", files
                self._make(found[0])
        if found[1] is None and self._missing:
            self.end()  # this path may lead into one of them
        self._at[folder] = found
        return found

    def _missing_one(self, above: bytes, folder: bytes) -> _At:
        """*folder* under another name if it is missing, and where it is if it isn't, or can't be made."""
        self._named += 1
        there = _BESIDE % (above, b"%b-%d" % (self._word, self._named)) + b"/"
        try:
            os.lstat(folder[:-1])
        except FileNotFoundError:
            if above not in self._swept:
                self._swept.add(above)
                _sweep(above, self._remove)
            with contextlib.suppress(OSError):  # then its first file says why
                self._make(there)
                self._missing[there] = folder, []
                if len(self._marked) < _MOST_LOCKED:
                    self._marked[there] = _marked(there)
                return there, self._missing[there][1]
        except OSError:
            pass  # as well
        return folder, None

    def _make(self, folder: bytes) -> None:
        try:
            os.mkdir(folder)
        except FileExistsError:  # the batch has a file of this name
            raise failed(errno.ENOTDIR) from None
        self._made.append(folder)

    def _lacks(self, folder: bytes, name: bytes) -> bool:
        """Whether nothing had this *name*, of a file that is written now, when its *folder* was read."""
        names = self._in.get(folder)
        if names is None:
            if folder in self._in:
                return False
            if folder not in self._once:
                self._once.add(folder)
                return False
            names = self._in[folder] = self._read(folder)
        if names is None or name in names:
            return False
        names.add(name)
        return True

    def _read(self, folder: bytes) -> set[bytes] | None:
        try:
            with os.scandir(folder or b".") as entries:
                names = {each.name for each in itertools.islice(entries, self._left)}
        except OSError:
            return None
        self._left -= len(names)
        return names | _NO_NAMES if self._left else None


def _marked(folder: bytes) -> tuple[int, int]:
    """Lock a new *folder*, and mark it as a batch's. Returns its descriptor and its mode."""
    fd = os.open(folder, _FOLDER)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.fchmod(fd, mode | stat.S_ISVTX)
    except BaseException:
        os.close(fd)
        raise
    return fd, mode


def _sweep(above: bytes, remove: Remove) -> None:
    """Remove the folders of batches in *above* whose processes were killed."""
    there = list[bytes]()
    with contextlib.suppress(OSError), os.scandir(above or b".") as entries:
        there += (each.path for each in itertools.islice(entries, _MOST_NAMES) if _OF_BATCH.fullmatch(each.name))
    for folder in there:
        with contextlib.suppress(OSError):
            fd = os.open(folder, _FOLDER)
            try:
                if os.fstat(fd).st_mode & stat.S_ISVTX:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder, True, True)
            finally:
                os.close(fd)


def write_many(data: bytes, told: Told, remove: Remove) -> list[list[Any]]:
    """
    Write the files of a batch. Returns the number, errno and reason of each that couldn't be written. *remove* is
    file_tree's: where these run, nothing can be imported any more.
    """
    wrong: list[list[Any]] = []
    batch = _Batch(remove)

    def tried(write: Callable[..., None], file: _File, *more: bytes) -> None:
        try:
            write(file, *more)
        except TimeoutError:  # of the whole call
            raise
        except (OSError, ValueError) as error:
            wrong.append([file[0], *told(error).values()])

    try:
        for number, (path, mode, content) in enumerate(files_in(data)):
            if number >= MAX_ROWS:
                raise ValueError(f"a batch has {MAX_ROWS} files at most")
            tried(batch.write, (number, path, mode, content))
    finally:
        again = batch.end()
    for file in again:
        tried(batch.replace, file, file[1])
    return sorted(wrong)


def _write_new(at: bytes, mode: int, content: memoryview) -> None:
    """As FileWriting, of a whole file that has the name *at* from the beginning, in fewer steps."""
    fd = _made(at, mode)
    try:
        while content:
            content = content[os.write(fd, content):]
        if mode >= 0:
            os.fchmod(fd, mode & 0o777)
    except BaseException:
        os.close(fd)
        _unlink(at)
        raise
    os.close(fd)


def read_many(paths: bytes, told: Told) -> bytes:
    """Read the first of the files, as many as one answer holds; EFBIG for one that doesn't fit into an empty one."""
    found, left, asked = list[bytes](), CHUNK, paths.split(b"\0", MAX_ROWS)[:-1]
    seen = _regular_among(asked)
    for path in asked:
        try:
            if path not in seen:
                regular(os.stat(path))  # before it is opened, as in `opened`
            content = _content(path, left - FOUND.size)
            if content is None and found:
                break
            entry = found_of(0, content) if content is not None else found_of(errno.EFBIG, b"")
        except TimeoutError:  # of the whole call
            raise
        except (OSError, ValueError) as error:
            number, why = told(error).values()
            entry = found_of(number, why.encode("utf-8", "replace"))
        if len(entry) > left:
            break
        found.append(entry)
        left -= len(entry)
    return b"".join(found)


def _regular_among(paths: Sequence[bytes]) -> Collection[bytes]:
    """Those of *paths* that their folders tell to be regular files, which takes a fifth of a look at each."""
    seen = set[bytes]()
    for folder, count in Counter(path[:path.rfind(b"/") + 1] for path in paths).items():
        if count >= _LISTED_FROM:
            with contextlib.suppress(OSError, ValueError), os.scandir(folder or b".") as entries:
                seen.update(folder + each.name for each in itertools.islice(entries, _LISTED * count)
                            if each.is_file(follow_symlinks=False))
    return seen


def _content(path: bytes, most: int) -> bytes | None:
    """All of a file, to its end and not to the size that it has at first; None if that is more than *most* bytes."""
    fd = os.open(path, _OPEN)
    try:
        data = more = os.read(fd, min(_SMALL, most + 1))
        if len(data) == _SMALL:  # the rest in one piece, if it is as long as it says
            left = os.fstat(fd).st_size - _SMALL
            if left > most - _SMALL:
                return None
            data += os.read(fd, max(left, 0) + 1)
        while more and len(data) <= most:
            more = os.read(fd, _SMALL)
            data += more
        return data if len(data) <= most else None
    finally:
        os.close(fd)


def close(call: Fields, handles: Handles) -> dict[str, Any]:
    with contextlib.suppress(OSError):  # the number isn't known any more
        handles.take(call["handle"]).drop()
    return {}


def append(call: Fields) -> dict[str, Any]:
    os.makedirs(os.path.dirname(call["path"]) or b".", exist_ok=True)
    fd, _ = opened(call["path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        answer.write(fd, [call["data"]])
        return {"size": os.fstat(fd).st_size}
    finally:
        os.close(fd)


def edit(call: Fields) -> dict[str, Any]:
    """Replace `old` by `new` if it occurs once. Returns the number of occurrences."""
    path, old = call["path"], call["old"]
    if not old:
        raise ValueError("there is no text to look for")
    fd, there = opened(path)
    try:
        if there.st_size > MOST_EDITED:
            raise failed(errno.EFBIG, f"a file of more than {MOST_EDITED} bytes can't be edited")
        content = b""
        while len(content) <= MOST_EDITED and (data := os.read(fd, CHUNK)):
            content += data
    finally:
        os.close(fd)
    at = content.find(old)
    if at < 0:
        return {"found": 0}
    if content.find(old, at + 1) >= 0:
        return {"found": max(2, content.count(old))}
    one = FileWriting(path)
    with one:
        one.put(0, content[:at])
        one.put(at, call["new"])
        one.put(at + len(call["new"]), content[at + len(old):])
        now = os.stat(path)
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (there.st_ino, there.st_size, there.st_mtime_ns):
            raise failed(errno.ESTALE, "somebody else has changed the file")
    one.finish()
    return {"found": 1}
