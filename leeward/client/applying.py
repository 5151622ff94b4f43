"""
Applies a sandbox's changes to the host, with this program's own rights.

Trust:     none in the sandbox's content; see `changes`. Everything is written beneath the folder, without a name, and
           then put at its place (`placing`); no link is followed.
Once:      all contents are fetched into a journal before the first change of the host. What a program that was killed
           hasn't done, the next one does (`finish_interrupted`), except where the host was changed since.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from leeward._native.beneath import open_beneath
from leeward.base.dataclass import dataclass, replace
from leeward.client.apply_journal import ApplyJournal, begun, interrupted, state_folder
from leeward.client.changes import FOLDER, FolderChange, HostFolder, digest_of, type_of
from leeward.client.file_trees import stays_below
from leeward.client.host_paths import beneath
from leeward.client.placing import NewFile, put_link
from leeward.errors import RequestRejected, Stale
from leeward.spec.folders import HOLES


def chosen(all_of_them: Sequence[FolderChange], paths: Iterable[str] | None) -> list[FolderChange]:
    """The changes of *paths* and below, with the new folders that they need; RequestRejected if one hasn't changed."""
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


@dataclass(frozen=True, slots=True)
class FinishedApply:
    """What was left of an `apply` in *folder* whose program was killed: the paths *done* now, and why others are *left*."""

    folder: str
    done: tuple[str, ...]
    left: tuple[Stale, ...]


#: The mode of a new folder until its own is set.
_NEW_FOLDER = 0o700
_Step = Callable[[FolderChange, ApplyJournal], None]


class Applying:
    """
    Applies changes to a folder of the host.

    Args:
        host: the folder.
        read: writes the present content of a file in the sandbox, by its path, to a descriptor: at most a number of
            bytes, and one more if the file is larger.
        done: inode and ctime of each path that was applied before; `apply` adds its own.
    """

    def __init__(self, host: HostFolder, read: Callable[[bytes, int, int], None],
                 done: dict[bytes, tuple[int, int]]) -> None:
        self._host, self._read, self._done = host, read, done
        self._unsynced: dict[bytes, None] = {}  # folders whose entries have changed

    def apply(self, chosen: Sequence[FolderChange], *, seen: bool = False) -> None:
        """
        Apply all of *chosen*, after a check of each: if one can't be applied, none is. If they were *seen*, a file's
        content has to be the one that was listed. Raises as `Sandbox.apply`; RequestRejected if the contents can't be
        kept in a journal.
        """
        folders = _made(chosen)
        for change in chosen:
            self._check(change, seen)
            self._check_parent(change, folders)
        try:
            journal = begun(os.environ)
        except OSError as error:
            raise _no_journal(error) from None
        with contextlib.closing(journal):
            try:
                for change in chosen:
                    if change.writes_content:
                        self._fetch(change, journal)
                journal.complete(self._host.row, chosen, [change.path for change in chosen if self._is_retyped(change)])
            except BaseException as error:
                journal.remove()
                if isinstance(error, OSError):
                    raise _no_journal(error) from None
                raise
            self._carry_out(journal)
            journal.remove()  # not if this program is interrupted, say by Ctrl-C: the next one finishes it

    def _fetch(self, change: FolderChange, journal: ApplyJournal) -> None:
        start = os.fstat(journal.fd).st_size
        self._read(os.fsencode(change.path), journal.fd, change.size)
        size = os.fstat(journal.fd).st_size - start
        if size == change.size and change.sha256 is not None:
            os.lseek(journal.fd, start, os.SEEK_SET)
            size = size if change.sha256 == digest_of(journal.fd).hex() else -1
        if size != change.size:
            raise Stale(f"{change.path!r:.120} was changed in the sandbox meanwhile", change.path)
        journal.add(change.path, start)

    def _carry_out(self, journal: ApplyJournal) -> None:
        applied = list[str]()
        try:
            for change, do in self._in_order(journal.changes):
                do(change, journal)
                applied.append(change.path)
            self._sync()
        except Stale as error:
            error.applied = tuple(applied)
            journal.remove()
            self._sync()
            raise

    def _in_order(self, changes: Sequence[FolderChange]) -> Iterable[tuple[FolderChange, _Step]]:
        yield from ((change, self._remove) for change in reversed(changes) if change.kind == "deleted")
        yield from ((change, self._put) for change in changes if change.kind != "deleted")

    def finish(self, journal: ApplyJournal) -> FinishedApply:
        """Do what the program that has left *journal* hasn't done, but for paths that were changed on the host since."""
        done, left = list[str](), list[Stale]()
        for change, do in self._in_order(journal.changes):
            try:
                if change.kind != "deleted":
                    self._clean(change, journal)
                if not self._is_done(change):
                    do(self._halfway(change, journal), journal)
                    done.append(change.path)
            except Stale as error:
                left.append(error)
        with contextlib.suppress(Stale):
            self._sync()
        return FinishedApply(str(journal.row["path"]), tuple(done), tuple(left))

    def _is_retyped(self, change: FolderChange) -> bool:
        about = self._host.look(os.fsencode(change.path)) if change.kind == "modified" else None
        return about is not None and type_of(about.st_mode) != change.type

    def _halfway(self, change: FolderChange, journal: ApplyJournal) -> FolderChange:
        """What is left of a change that takes two steps, if the first one was done."""
        about = self._host.look(os.fsencode(change.path))
        if about is None and change.path in journal.retyped:  # what had another type was removed
            return replace(change, kind="created")
        if about is not None and stat.S_ISDIR(about.st_mode) and change.type == "folder" and change.kind != "mode" \
                and stat.S_IMODE(about.st_mode) == _NEW_FOLDER:  # the folder was made
            self._done[os.fsencode(change.path)] = about.st_ino, about.st_ctime_ns
            return replace(change, kind="mode")
        return change

    def _clean(self, change: FolderChange, journal: ApplyJournal) -> None:
        """Remove what has a temporary name yet."""
        with self._parent(change) as (parent, _), contextlib.suppress(FileNotFoundError):
            os.unlink(_temporary(journal, change), dir_fd=parent)

    def _is_done(self, change: FolderChange) -> bool:
        path = os.fsencode(change.path)
        about = self._host.look(path)
        if about is None or change.kind == "deleted":
            return about is None and change.kind == "deleted"
        if type_of(about.st_mode) != change.type:
            return False
        if change.type == "link":
            return self._host.link(path) == os.fsencode(change.link or "")
        if change.writes_content and (about.st_size != change.size or change.sha256 is None
                                   or self._host.digest(path) != bytes.fromhex(change.sha256)):
            return False
        return stat.S_IMODE(about.st_mode) == change.mode & 0o777

    def conflicts(self, chosen: Sequence[FolderChange], *, seen: bool = True) -> dict[str, Stale | RequestRejected]:
        """Why some of *chosen* can't be applied, by path: the others can, together. *seen* is as for `apply`."""
        folders, found, gone = _made(chosen), dict[str, Stale | RequestRejected](), set[bytes]()
        for change in reversed(chosen):  # what is in a folder comes before the folder
            path = os.fsencode(change.path)
            try:
                self._check(change, seen)
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
            with beneath(self._host.fd, path) as fd:
                names = os.listdir(fd)
        except OSError:
            return  # no folder
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

    def _remove(self, change: FolderChange, _journal: ApplyJournal) -> None:
        with self._parent(change) as (parent, name):
            about = os.stat(name, dir_fd=parent, follow_symlinks=False)
            self._fresh(change, about)
            if stat.S_ISDIR(about.st_mode):
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
            self._unsynced[os.path.dirname(os.fsencode(change.path))] = None

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

    @contextlib.contextmanager
    def _parent(self, change: FolderChange) -> Iterator[tuple[int, bytes]]:
        """A context with a descriptor of the folder of *change*, and its name there; an OSError in it becomes Stale."""
        folder, name = os.path.split(os.fsencode(change.path))
        what = f"the folder of {change.path!r:.120}"
        try:
            with beneath(self._host.fd, folder) as parent:
                what = f"{change.path!r:.120}"
                yield parent, name
        except OSError as error:
            raise Stale(f"{what}: {(error.strerror or '').lower()}", change.path) from None

    def _put(self, change: FolderChange, journal: ApplyJournal) -> None:
        path = os.fsencode(change.path)
        with self._parent(change) as (parent, name):
            try:
                about: os.stat_result | None = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                about = None
            self._fresh(change, about)
            if about is not None and type_of(about.st_mode) != change.type:
                (os.rmdir if stat.S_ISDIR(about.st_mode) else os.unlink)(name, dir_fd=parent)
                about = None
            self._unsynced[os.path.dirname(path)] = None
            self._place(change, journal, parent, name, about)
            now = os.stat(name, dir_fd=parent, follow_symlinks=False)
            self._done[path] = now.st_ino, now.st_ctime_ns

    def _place(self, change: FolderChange, journal: ApplyJournal, parent: int, name: bytes,
               about: os.stat_result | None) -> None:
        """Write one path into the folder *parent*, without set-id and sticky bits."""
        mode = change.mode & 0o777
        if change.type == "folder":
            if about is None:
                os.mkdir(name, _NEW_FOLDER, dir_fd=parent)
            self._set_mode(parent, name, mode, os.O_DIRECTORY)
            return
        if change.kind == "mode":
            self._set_mode(parent, name, mode, os.O_NONBLOCK)
            return
        temporary = _temporary(journal, change)
        if change.type == "link":
            put_link(parent, temporary, name, os.fsencode(change.link or ""), replaces=about is not None)
            return
        file = NewFile(parent, temporary)
        try:
            journal.content(change.path, file.fd)
            os.fchmod(file.fd, mode)
            os.fsync(file.fd)
            file.put(name, replaces=about is not None)
        finally:
            file.close()

    @staticmethod
    def _set_mode(parent: int, name: bytes, mode: int, flags: int) -> None:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def finish_interrupted(environ: Mapping[str, str] = os.environ) -> list[FinishedApply]:
    """Finish what programs of this user's have begun to apply that were killed."""
    found = list[FinishedApply]()
    for journal in interrupted(environ):
        try:
            host = HostFolder(journal.row)
        except Stale as error:
            found.append(FinishedApply(str(journal.row["path"]), (), (error,)))
        else:
            with contextlib.closing(host):
                found.append(Applying(host, _nothing, {}).finish(journal))
        journal.remove()
    return found


def _no_journal(error: OSError) -> RequestRejected:
    return RequestRejected(f"what is to be applied can't be kept in {state_folder(os.environ)!r:.200} first:"
                           f" {(error.strerror or 'an error').lower()}; nothing was applied")


def _nothing(_path: bytes, _into: int, _most: int) -> None:
    return


def _temporary(journal: ApplyJournal, change: FolderChange) -> bytes:
    """A name that the sandbox can't guess."""
    return b".leeward-" + hashlib.sha256(journal.token.encode() + os.fsencode(change.path)).hexdigest()[:32].encode()


def leads_out(change: FolderChange) -> bool:
    """Whether a link could lead out, also by others of the sandbox: if `deep/link` is the top, `deep/link/..` is outside."""
    return not stays_below(os.fsencode(change.link or ""), change.path.count("/"))
