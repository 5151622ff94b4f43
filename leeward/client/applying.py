"""
Applies a sandbox's changes to the host.

Runs in:   anybody's program, with that program's own rights.
Trust:     none in the sandbox's content; see `changes`. Everything is written beneath the folder, under a random name,
           and then renamed over the old file; no link is followed.
Source:    openat2(2), link(2), rename(2)
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Iterable, Sequence

from leeward._native.beneath import open_beneath
from leeward.client.changes import CHUNK, FOLDER, FolderChange, HostFolder, type_of
from leeward.client.file_trees import stays_below
from leeward.errors import RequestRejected, Stale
from leeward.spec.folders import HOLES


def chosen(all_of_them: Sequence[FolderChange], paths: Iterable[str] | None) -> list[FolderChange]:
    """
    The changes of *paths* and below them, with the new folders that they need; all changes for None.

    Raises:
        RequestRejected: one of *paths* hasn't changed.
    """
    if paths is None:
        return list(all_of_them)
    wanted = [posixpath.normpath(path) for path in paths]
    for path in wanted:
        if not any(change.path == path or change.path.startswith(path + "/") for change in all_of_them):
            raise RequestRejected(f"{path!r} has not changed")
    return [change for change in all_of_them
            if any(change.path == path or change.path.startswith(path + "/") for path in wanted)
            or (change.type == "folder" and change.kind == "created"
                and any(path.startswith(change.path + "/") for path in wanted))]


def _made(chosen: Sequence[FolderChange]) -> set[str]:
    return {change.path for change in chosen if change.type == "folder" and change.kind != "deleted"}


class Applying:
    """
    Applies changes to a folder of the host.

    Args:
        host: the folder.
        read: called with the path of a changed file in the sandbox, a descriptor, and a number of bytes. It writes the
            file's present content to the descriptor: at most that many bytes, and one more if the file is larger.
        done: inode and ctime of each path that was applied before; `apply` adds its own.
    """

    def __init__(self, host: HostFolder, read: Callable[[bytes, int, int], None],
                 done: dict[bytes, tuple[int, int]]) -> None:
        self._host, self._read, self._done = host, read, done
        self._unsynced: dict[bytes, None] = {}  # folders whose entries have changed

    def apply(self, chosen: Sequence[FolderChange], *, seen: bool = False) -> None:
        """
        Apply all of *chosen*, after a check of each: if one can't be applied, none is.

        Args:
            chosen: the changes.
            seen: whether somebody has looked at *chosen*, so that a file's content has to be the one that was listed.

        Raises:
            Stale: a path was changed on the host since the sandbox was opened. If another program writes there after
                the check, some changes may have been applied.
            RequestRejected: a change that isn't applied to a host: a special file, a link that leads out of the folder,
                a sparse file, or one that was seen without a comparison of its content.
        """
        folders = _made(chosen)
        for change in chosen:
            self._check(change, seen)
            self._check_parent(change, folders)
        try:
            for change in reversed(chosen):
                if change.kind == "deleted":
                    self._remove(change)
            for change in chosen:
                if change.kind != "deleted":
                    self._put(change)
        finally:
            self._sync()

    def conflicts(self, chosen: Sequence[FolderChange]) -> dict[str, Stale | RequestRejected]:
        """Why some of *chosen*, which somebody has looked at, can't be applied, by path: the others can, together."""
        folders, found, gone = _made(chosen), dict[str, Stale | RequestRejected](), set[bytes]()
        for change in reversed(chosen):  # what is in a folder comes before the folder
            path = os.fsencode(change.path)
            try:
                self._check(change, seen=True)
                self._check_parent(change, folders)
                if change.kind == "deleted" or change.type != "folder":
                    self._check_empty(change, gone)
            except (Stale, RequestRejected) as error:
                found[change.path] = error
            else:
                if change.kind == "deleted":
                    gone.add(path)
        return {path: found[path] for path in sorted(found)}

    def _check_empty(self, change: FolderChange, gone: set[bytes]) -> None:
        """Check that a folder of the host that is to be removed has nothing but *gone*."""
        path = os.fsencode(change.path)
        try:
            fd = open_beneath(self._host.fd, path, FOLDER)
        except OSError:
            return  # no folder
        try:
            names = os.listdir(fd)
        finally:
            os.close(fd)
        if any(path + b"/" + os.fsencode(name) not in gone for name in names):
            raise Stale(f"the folder {change.path!r:.120} is not empty", change.path)

    def _check(self, change: FolderChange, seen: bool) -> None:
        what = f"{change.path!r:.120}"
        if change.kind != "deleted":
            if change.type == "special":
                raise RequestRejected(f"{what} is a FIFO, a socket or a device: leave it out")
            if change.type == "link" and leads_out(change):
                raise RequestRejected(f"{what} is a link that leads out of the folder: leave it out")
            if change.size > change.allocated + HOLES:
                raise RequestRejected(f"{what} has {change.size} bytes, and occupies {change.allocated}: leave it out")
            if seen and not change.is_compared:
                raise RequestRejected(f"{what} was listed without a hash, so its content can have changed since: name it"
                                      " in `paths`, without `changes`, to apply whatever it is now")
        about = self._host.look(os.fsencode(change.path))
        self._fresh(change, about)

    def _check_parent(self, change: FolderChange, folders: set[str]) -> None:
        """Check that a new path is in a folder of the host, or in one of *folders*, which are applied as well."""
        parent = posixpath.dirname(change.path)
        if change.kind != "created" or not parent or parent in folders:
            return
        about = self._host.look(os.fsencode(parent))
        if about is None or not stat.S_ISDIR(about.st_mode):
            raise Stale(f"the folder of {change.path!r:.120} is not on the host any more", change.path)

    def _fresh(self, change: FolderChange, about: os.stat_result | None) -> None:
        what = f"{change.path!r:.120}"
        if change.kind == "created":
            if about is not None:
                raise Stale(f"{what} exists on the host by now", change.path)
            return
        if about is None:
            raise Stale(f"{what} is not on the host any more", change.path)
        # A folder's ctime changes with every entry. If entries came, rmdir will fail.
        folder = stat.S_ISDIR(about.st_mode) and change.kind != "mode"
        known = self._done.get(os.fsencode(change.path)) == (about.st_ino, about.st_ctime_ns)
        if about.st_ctime_ns >= self._host.since and not folder and not known:
            raise Stale(f"{what} was changed on the host since the sandbox was opened", change.path)

    def _remove(self, change: FolderChange) -> None:
        path = os.fsencode(change.path)
        parent, name = self._parent(change, path)
        try:
            about = os.stat(name, dir_fd=parent, follow_symlinks=False)
            self._fresh(change, about)
            if stat.S_ISDIR(about.st_mode):
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
            self._unsynced[os.path.dirname(path)] = None
        except OSError as error:
            raise Stale(f"{change.path!r:.120}: {(error.strerror or '').lower()}", change.path) from None
        finally:
            os.close(parent)

    def _sync(self) -> None:
        """Sync each folder with changed entries, once: a sync for each entry took half of the time of many small files."""
        while self._unsynced:
            folder, _ = self._unsynced.popitem()
            try:
                fd = open_beneath(self._host.fd, folder or b".", FOLDER)
            except OSError:
                continue  # it was removed
            try:
                os.fsync(fd)
            except OSError as error:
                raise Stale(f"{os.fsdecode(folder)!r:.120}: {(error.strerror or '').lower()}",
                            os.fsdecode(folder)) from None
            finally:
                os.close(fd)

    def _parent(self, change: FolderChange, path: bytes) -> tuple[int, bytes]:
        folder, name = os.path.split(path)
        try:
            return open_beneath(self._host.fd, folder or b".", FOLDER), name
        except OSError as error:
            raise Stale(f"the folder of {change.path!r:.120}: {(error.strerror or '').lower()}", change.path) from None

    def _put(self, change: FolderChange) -> None:
        path = os.fsencode(change.path)
        parent, name = self._parent(change, path)
        try:
            try:
                about: os.stat_result | None = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                about = None
            self._fresh(change, about)
            if about is not None and type_of(about.st_mode) != change.type:
                (os.rmdir if stat.S_ISDIR(about.st_mode) else os.unlink)(name, dir_fd=parent)
                about = None
            self._unsynced[os.path.dirname(path)] = None
            self._place(change, path, parent, name, about)
            now = os.stat(name, dir_fd=parent, follow_symlinks=False)
            self._done[path] = now.st_ino, now.st_ctime_ns
        except OSError as error:
            raise Stale(f"{change.path!r:.120}: {(error.strerror or '').lower()}", change.path) from None
        finally:
            os.close(parent)

    def _place(self, change: FolderChange, path: bytes, parent: int, name: bytes, about: os.stat_result | None) -> None:
        """Write one path into the folder *parent*, without set-id and sticky bits."""
        mode = change.mode & 0o777
        if change.type == "folder":
            if about is None:
                os.mkdir(name, 0o700, dir_fd=parent)
            self._set_mode(parent, name, mode, os.O_DIRECTORY)
            return
        if change.kind == "mode":
            self._set_mode(parent, name, mode, os.O_NONBLOCK)
            return
        # A temporary file in the same folder, by a name that the sandbox can't guess.
        temporary = b".leeward-" + secrets.token_hex(8).encode()
        try:
            if change.type == "link":
                os.symlink(os.fsencode(change.link or ""), temporary, dir_fd=parent)
            else:
                self._content(change, path, parent, temporary, mode)
            if about is None:  # link(2) replaces nothing
                os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
            else:
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            try:
                os.unlink(temporary, dir_fd=parent)
            except FileNotFoundError:
                pass

    @staticmethod
    def _set_mode(parent: int, name: bytes, mode: int, flags: int) -> None:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def _content(self, change: FolderChange, path: bytes, parent: int, temporary: bytes, mode: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=parent)
        try:
            self._read(path, fd, change.size)
            if os.fstat(fd).st_size != change.size or (change.sha256 is not None and _hash(fd) != change.sha256):
                raise Stale(f"{change.path!r:.120} was changed in the sandbox meanwhile", change.path)
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)


def _hash(fd: int) -> str:
    found, at = hashlib.sha256(), 0
    while data := os.pread(fd, CHUNK, at):
        found.update(data)
        at += len(data)
    return found.hexdigest()


def leads_out(change: FolderChange) -> bool:
    """
    Whether a link could lead out of the folder, alone or together with other links that the sandbox has made: if
    `deep/link` leads to the top, `deep/link/..` is outside.
    """
    return not stays_below(os.fsencode(change.link or ""), change.path.count("/"))
