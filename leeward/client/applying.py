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
import resource
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from leeward._native.beneath import open_beneath
from leeward._native.steps import Call, result_of
from leeward.base.closing import OwnedFd, on_failure
from leeward.base.dataclass import dataclass, replace
from leeward.client.apply_journal import ApplyJournal, begun, interrupted, state_folder
from leeward.client.changes import FOLDER, FolderChange, HostFolder, beneath, digest_of, type_of
from leeward.client.file_trees import stays_below
from leeward.client.placing import NewFile, put_link
from leeward.errors import RequestRejected, Stale, reason_of
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


def sync_all(fd: int) -> None:
    """Wait until all that is in the file system of *fd* is on the disk; OSError. syncfs(2); its errors: Linux 5.8."""
    failed = result_of(Call.SYNCFS, fd, optional=True)
    if failed < 0:
        raise OSError(-failed, os.strerror(-failed))


def _made(chosen: Sequence[FolderChange]) -> set[str]:
    return {change.path for change in chosen if change.type == "folder" and change.kind != "deleted"}


@dataclass(frozen=True, slots=True)
class FinishedApply:
    """What was left of an `apply` in *folder* whose program was killed: the paths *done* now, and why others are *left*."""

    folder: str
    done: tuple[str, ...]
    left: tuple[Stale, ...]


#: Files, and folders of theirs, that are open until the disk is waited for, at most; and so few files that each is waited
#: for by itself. One wait for the whole file system takes as long as a dozen for one file.
_FILES, _FOLDERS, _FEW = 1000, 100, 12
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
        self._folders: dict[bytes, int] = {}  # descriptors of folders, until many changes are done together

    def apply(self, chosen: Sequence[FolderChange], *, seen: bool = False) -> None:
        """
        Apply all of *chosen*, after a check of each: if one can't be applied, none is. If they were *seen*, a file's
        content has to be the one that was listed. Raises as `Sandbox.apply`; RequestRejected if the contents can't be
        kept in a journal.
        """
        folders = _made(chosen)
        try:
            for change in chosen:
                self._check(change, seen)
                self._check_parent(change, folders)
        finally:
            self._leave()
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
        applied, written = list[str](), list[tuple[FolderChange, NewFile]]()
        most = min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3)
        try:
            for change, do in self._in_order(journal.changes):
                if change.kind != "deleted" and change.writes_content:
                    written.append((change, self._written(change, journal)))
                else:
                    do(change, journal)
                    applied.append(change.path)
                if len(written) >= most or len(self._folders) >= _FOLDERS:
                    self._put_all(written, applied)
            self._put_all(written, applied)
            self._sync()
        except Stale as error:
            error.applied = tuple(applied)
            journal.remove()
            self._sync()
            raise
        finally:
            for _, file in written:
                file.close()
            self._leave()

    def _put_all(self, written: list[tuple[FolderChange, NewFile]], applied: list[str]) -> None:
        """Put each of *written* at its place once it is on the disk, and take it from the list."""
        if len(written) > _FEW:
            with self._parent(written[0][0]):
                sync_all(self._host.fd)
        else:
            for change, file in written:
                with self._parent(change):
                    os.fsync(file.fd)
        while written:
            change, file = written[0]
            with self._parent(change) as (parent, name):
                file.put(name, replaces=self._make_room(change, parent, name) is not None)
                self._note(change, parent, name)
            applied.append(change.path)
            written.pop(0)[1].close()
        self._leave()

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
            self._leave()
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
        self._leave()
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
        self._fresh(change, self._look(change))

    def _look(self, change: FolderChange) -> os.stat_result | None:
        """As `HostFolder.look`; many changes of one folder open it once."""
        folder, _, name = os.fsencode(change.path).rpartition(b"/")
        if len(self._folders) >= _FOLDERS:
            self._leave()
        try:
            if folder not in self._folders:
                self._folders[folder] = open_beneath(self._host.fd, folder or b".", FOLDER)
            about = os.stat(name, dir_fd=self._folders[folder], follow_symlinks=False)
            if about.st_dev == self._host.row["device"]:  # else it may be another mount
                return about
        except FileNotFoundError:
            if folder in self._folders:
                return None
        except OSError:
            pass
        return self._host.look(os.fsencode(change.path))

    def _check_parent(self, change: FolderChange, folders: set[str]) -> None:
        """Check that a new path is in a folder of the host, or in one of *folders*, which are applied as well."""
        parent = posixpath.dirname(change.path)
        if change.kind != "created" or not parent or parent in folders:
            return
        about = self._host.look(os.fsencode(parent))
        if about is None or not stat.S_ISDIR(about.st_mode):
            raise Stale(f"the folder of {change.path!r:.120} is not on the host any more", change.path)

    def _fresh(self, change: FolderChange, about: os.stat_result | None) -> None:
        if change.kind == "created":
            if about is not None:
                raise Stale(f"{change.path!r:.120} exists on the host by now", change.path)
            return
        what = f"{change.path!r:.120}"
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
            self._unsynced[os.fsencode(change.path).rpartition(b"/")[0]] = None

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
                raise Stale(f"{os.fsdecode(folder)!r:.120}: {reason_of(error)}",
                            os.fsdecode(folder)) from None
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def _parent(self, change: FolderChange) -> Iterator[tuple[int, bytes]]:
        """A context with a descriptor of the folder of *change*, and its name there; an OSError in it becomes Stale."""
        folder, _, name = os.fsencode(change.path).rpartition(b"/")
        found = self._folders.get(folder)
        try:
            if found is None:
                found = self._folders[folder] = open_beneath(self._host.fd, folder or b".", FOLDER)
            yield found, name
        except OSError as error:
            what = f"{'the folder of ' if found is None else ''}{change.path!r:.120}"
            raise Stale(f"{what}: {reason_of(error)}", change.path) from None

    def _leave(self) -> None:
        """Close the folders that `_parent` has opened: their paths may be others' by the next change."""
        while self._folders:
            os.close(self._folders.popitem()[1])

    def _put(self, change: FolderChange, journal: ApplyJournal) -> None:
        """Put one path at its place, without set-id and sticky bits."""
        if change.writes_content:
            written = [(change, self._written(change, journal))]
            try:
                self._put_all(written, [])
            finally:
                for _, file in written:
                    file.close()
            return
        mode = change.mode & 0o777
        with self._parent(change) as (parent, name):
            about = self._make_room(change, parent, name)
            if change.type == "folder":
                if about is None:
                    os.mkdir(name, _NEW_FOLDER, dir_fd=parent)
                self._set_mode(parent, name, mode, os.O_DIRECTORY)
            elif change.kind == "mode":
                self._set_mode(parent, name, mode, os.O_NONBLOCK)
            else:
                put_link(parent, _temporary(journal, change), name, os.fsencode(change.link or ""),
                         replaces=about is not None)
            self._note(change, parent, name)

    def _written(self, change: FolderChange, journal: ApplyJournal) -> NewFile:
        """A file without a place, which the caller owns, with the content and the mode of *change*."""
        with self._parent(change) as (parent, _):
            file = NewFile(parent, _temporary(journal, change))
            with on_failure(file.close):
                journal.content(change.path, file.fd)
                os.fchmod(file.fd, change.mode & 0o777)
            return file

    def _make_room(self, change: FolderChange, parent: int, name: bytes) -> os.stat_result | None:
        """Check what *name* in *parent* is now, and remove it if it has another type; None if there is nothing then."""
        try:
            about: os.stat_result | None = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            about = None
        self._fresh(change, about)
        self._unsynced[os.fsencode(change.path).rpartition(b"/")[0]] = None
        if about is not None and type_of(about.st_mode) != change.type:
            (os.rmdir if stat.S_ISDIR(about.st_mode) else os.unlink)(name, dir_fd=parent)
            return None
        return about

    def _note(self, change: FolderChange, parent: int, name: bytes) -> None:
        now = os.stat(name, dir_fd=parent, follow_symlinks=False)
        self._done[os.fsencode(change.path)] = now.st_ino, now.st_ctime_ns

    @staticmethod
    def _set_mode(parent: int, name: bytes, mode: int, flags: int) -> None:
        with OwnedFd(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)) as fd:
            os.fchmod(fd, mode)


def finish_interrupted() -> list[FinishedApply]:
    """Finish what programs of this user's have begun to apply that were killed."""
    found = list[FinishedApply]()
    for journal in interrupted(os.environ):
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
                           f" {reason_of(error)}; nothing was applied")


def _nothing(_path: bytes, _into: int, _most: int) -> None:
    return


def _temporary(journal: ApplyJournal, change: FolderChange) -> bytes:
    """A name that the sandbox can't guess."""
    return b".leeward-" + hashlib.sha256(journal.token.encode() + os.fsencode(change.path)).hexdigest()[:32].encode()


def leads_out(change: FolderChange) -> bool:
    """Whether a link could lead out, also by others of the sandbox: if `deep/link` is the top, `deep/link/..` is outside."""
    return not stays_below(os.fsencode(change.link or ""), change.path.count("/"))
