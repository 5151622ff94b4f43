"""
Keeps a sandbox from writing what programs on the host run at once, in a folder that it can write to.

Theory of operation. What there is when the sandbox is opened is mounted read-only over itself (`names`). A name that
begins with a dot and is missing in the folder itself is made first, as an empty folder, which no program obeys and git
doesn't list; missing settings of a repository are made as empty files. The sandbox sees them read-only as well, so it
can't make others in their place; `close` removes them. What git's settings name in the folder (the hooks of
`core.hooksPath`, a filter's script, an included file) is protected likewise, and what a link in a protected folder
leads to. The kernel can't refuse a name at any depth of a folder that is written live: `put_away` finds what the
sandbox makes elsewhere, after each call, and renames it, so that nothing obeys it and nothing is lost.
The kernel takes a mount away when a program of the host removes what it lies on, or puts another file in its place, as
`git config` and most editors do. So each protected name has a mark of the file that it was, and is told by it from any
that came later: then the sandbox ends, and what has come is put away.

Trust:     none in the folder's content: nothing is opened or renamed through a link.
Leaves:    the time between a file's making and the end of the call. What a person makes in the folder while the sandbox
           is open is renamed, too. Folders of NOT_SEARCHED, but for repositories in them. A file system that doesn't
           keep when a file was made, and gives a number of an inode to another one at once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping

from leeward._native.beneath import open_beneath
from leeward._native.mounts import made_at
from leeward.base.closing import OwnedFd, on_failure
from leeward.client.changes import FOLDER, beneath
from leeward.client.host_paths import PLACE
from leeward.client.mounts import Mount
from leeward.errors import LeewardError, RequestRejected, quoted, reason_of
from leeward.spec.folders import within
from leeward.spec.obeyed.lookup import plain
from leeward.spec.obeyed.repositories import INSIDE, NAMES, named_below, without_branches
from leeward.spec.obeyed.search import ObeyedPaths, search
from leeward.spec.obeyed.table import AT_ONCE, ROWS

#: Folders of packages that others have made, which is run when the project's own code is.
NOT_SEARCHED = ("node_modules",)
#: Names that are made as empty folders: those that run at once and begin with a dot; of repositories git's alone, since
#: its relatives take an empty folder for a broken repository.
PLACES = tuple(sorted({name for row in ROWS if row.kind == AT_ONCE for name in row.names
                       if name.startswith(".") and not set(name) & set("/*") and name not in NAMES - {".git"}}))
#: Settings in a repository that may be empty files, and folders.
_FILES = ("config", "config.worktree", "info/attributes", "lazygit.yml", "hgrc", "hgrc-not-shared")
_FOLDERS = ("hooks", "modules")
#: The mode of such a folder, by which it is known again after a program that was killed.
_MODE = 0o1755
#: Names of one sandbox, at most, and bytes of them; the daemon's bounds are 512 and 40 KiB.
_MOST, _MOST_BYTES = 480, 36 << 10
#: Bytes of a repository's settings that are read.
_MOST_SETTINGS = 1 << 20
#: What a name that is put away begins and ends with, so that it fits no name of the table; bytes of it that stay; files of
#: one name that have numbers; and searches for more.
AWAY, _AWAY_END, _MOST_NAME, _NUMBERED, _ROUNDS = "not-obeyed.", ".txt", 200, 10, 9


#: Names of a folder that are searched, at most.
_MAX_NAMES = 2_000_000


class Unprotected(LeewardError):
    """Something in the folder that programs on the host obey at once was written, and can't be put away."""


def check_beside(folder: str, mounts: Iterable[Mount]) -> None:
    """RequestRejected if one of *mounts* can be written, and shares files with the protected *folder*."""
    real = os.path.realpath(folder)
    for mount in mounts:
        other = os.path.realpath(mount.source)
        if mount.writable and (within(other, real) or within(real, other)):
            raise RequestRejected(f"mount {quoted(mount.target)} would let write what the work folder has protected; make"
                                  " it read-only or an overlay")


def _word(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def found_in(folder: int, *, at_once: bool = False, passed: tuple[str, ...] = ()) -> ObeyedPaths:
    def listed(path: str) -> list[tuple[str, bool]]:
        with beneath(folder, path) as fd, os.scandir(fd) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    return search(listed, _MAX_NAMES, at_once=at_once, passed=passed)


class FolderGuard:
    """
    Protects the folder *path*. RequestRejected if it can't be opened, has too many of such names, or one is a link.

    Args:
        places: the names to make as empty folders.
        known: what there was at the opening of a sandbox that is open already; None for a new sandbox.

    Attributes:
        names: what the sandbox can't write, relative to the folder.
        known: what the sandbox hasn't made, and `put_away` leaves; each with its mark, empty if it isn't protected.
    """

    def __init__(self, path: str | os.PathLike[str], places: Collection[str] = PLACES,
                 known: Mapping[str, str] | None = None) -> None:
        self._made = list[str]()
        self._states = dict[str, tuple[int, int, int] | None]()
        try:
            self._folder = os.open(path, FOLDER & ~os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise RequestRejected(f"{quoted(os.fspath(path))}: {reason_of(error)}") from None
        with on_failure(self.close):
            self.names: tuple[str, ...] = ()
            self.known = dict(known or {})
            if known is None:
                self._begin(places)

    def _begin(self, places: Collection[str]) -> None:
        fcntl.flock(self._folder, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until `close`: others use the same empty folders
        self._made += [name for name in PLACES if self._is_left(name)]
        found = self._search()
        if "" in found.unseen:
            raise RequestRejected("the folder can't be searched for what programs on the host obey")
        # A folder that can't be searched isn't written either.
        names = dict.fromkeys((*(name for name in found.names if not self._is_folder_of_repository(name)),
                               *found.unseen))
        for place in places:
            if place not in found.names and place not in found.repositories and self._make(place, _MODE):
                names[place] = None
        for repository in found.repositories:
            for name in self._inside(repository) if repository not in self._made else ():
                if self._make(name, None) or self._about(name) is not None:
                    names[name] = None
        names.update(dict.fromkeys(self._named(found.repositories)))
        names.update(dict.fromkeys([target for name in names for target in self._targets(name)]))
        for name in names:
            about = self._about(name)
            if about is not None and stat.S_ISLNK(about.st_mode):
                raise RequestRejected(f"{quoted(name)} is a link, which can't be write-protected; make it a folder or a"
                                      " file")
        if len(names) > _MOST or sum(len(os.fsencode(name)) + 16 for name in names) > _MOST_BYTES:
            raise RequestRejected(f"the folder has {len(names)} settings that programs on the host obey, and no more"
                                  f" than {_MOST} can be write-protected")
        try:
            "".join(names).encode()
        except UnicodeEncodeError:
            raise RequestRejected("the name of a setting that has to be write-protected isn't UTF-8") from None
        self.names = tuple(names)
        self.known = {**dict.fromkeys((*found.names, *found.repositories, *self._made), ""),
                      **{name: self._mark(name) for name in names}}

    def shown(self, names: Iterable[str]) -> list[str]:
        """Those of *names*, in the folder itself, that weren't made for a sandbox."""
        return [name for name in names if name.rstrip("/") not in self._made]

    def holds(self) -> bool:
        """Whether all that is protected is still what it was when the sandbox was opened."""
        return not self._replaced()

    def put_away(self, end: Callable[[], object]) -> list[str]:
        """
        Rename what the sandbox has made and programs on the host obey at once: the former paths. Unprotected if it
        can't. *end* ends the sandbox, and is called first if not all `holds`; what was replaced counts as the sandbox's
        then, but git's settings in which only branches differ.
        """
        moved = list[str]()
        if replaced := self._replaced():
            end()
            for name in replaced:
                before, now = self.known.pop(name).split(), self._mark(name).split()
                if before[1:] == now[1:] != []:
                    self.known[name] = " ".join(now)
        for rounds_left in reversed(range(_ROUNDS)):  # in a folder that was renamed there may be more
            wanted, left = self._made_since()
            for name in wanted if rounds_left else ():
                try:
                    moved += [name] * self._rename(name)
                except OSError:
                    left.append(name)
            if left or (wanted and not rounds_left):
                raise Unprotected("programs on the host may obey what the sandbox has written, and it can't be put"
                                  f" away: {', '.join(map(ascii, (left or wanted)[:10]))}")
            if not wanted:
                break
        return moved

    def _made_since(self) -> tuple[list[str], list[str]]:
        """What has to be put away, and what can't be."""
        found = self._search()
        wanted = [name for name in found.names if name not in self.known and not self._is_folder_of_repository(name)]
        left = [name for name in found.unseen if name not in self.known]
        named = self._named(self.known.keys() & found.repositories)
        named += [target for name in self.known.keys() - found.repositories for target in self._targets(name)]
        wanted += [name for name in named if name not in self.known]
        for repository in found.repositories:
            if repository in self.known or plain(os.path.basename(repository)) in NAMES:
                wanted += [name for name in self._inside(repository) if name not in self.known and self._about(name)]
            else:  # without this it isn't one
                sign = next((each for each in ("HEAD", "hooks") if self._about(f"{repository}/{each}".lstrip("/"))), "")
                (wanted if sign else left).append(f"{repository}/{sign}".strip("/"))
        return list(dict.fromkeys(wanted)), left

    def close(self) -> None:
        """Remove what was made for the sandbox, which has ended, unless another one needs it or it was used."""
        folder, self._folder = self._folder, -1
        if folder < 0:
            return
        with OwnedFd(folder), contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in reversed(self._made):
                with contextlib.suppress(OSError):
                    self._remove(folder, name)

    @staticmethod
    def _remove(folder: int, name: str) -> None:
        above, _, last = name.rpartition("/")
        with beneath(folder, above) as fd:
            about = os.stat(last, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode):
                os.rmdir(last, dir_fd=fd)
            elif stat.S_ISREG(about.st_mode) and not about.st_size:
                os.unlink(last, dir_fd=fd)

    def _named(self, repositories: Iterable[str]) -> list[str]:
        """
        The paths that the settings of *repositories* name, and those of files that these include; a word of a command,
        as `test`, is one if it isn't a folder's.
        """
        found = list[str]()
        for repository in repositories:
            above = os.path.dirname(repository) if plain(os.path.basename(repository)) in NAMES else repository
            settings = [f"{repository}/{name}".lstrip("/") for name in ("config", "config.worktree")]
            for name, is_path in named_below(settings, (above, repository), self._inner, self._read).items():
                about = self._about(name)
                if about is not None and (is_path or not stat.S_ISDIR(about.st_mode)):
                    found.append(name)
        return found

    def _targets(self, name: str) -> list[str]:
        """The paths in the folder to which links lead that are in the folder *name*: `hooks/pre-commit` may be one."""
        try:
            with beneath(self._folder, name) as fd, os.scandir(fd) as entries:
                links = [os.readlink(entry.name, dir_fd=fd) for entry in entries if entry.is_symlink()]
        except OSError:
            return []
        return [target for to in links if (target := self._inner(os.path.join(name, to))) and self._about(target)]

    def _inner(self, path: str) -> str:
        """The path in the folder of *path*, which may be absolute; "" if it isn't in it."""
        real = os.readlink(f"/proc/self/fd/{self._folder}")
        path = os.path.normpath(os.path.join(real, path))
        return path[len(real) + 1:] if within(path, real) else ""

    def _read(self, name: str) -> bytes:
        try:
            with OwnedFd(open_beneath(self._folder, os.fsencode(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as fd:
                return os.read(fd, _MOST_SETTINGS) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        except OSError:
            return b""

    def _search(self) -> ObeyedPaths:
        return found_in(self._folder, at_once=True, passed=NOT_SEARCHED)

    def _replaced(self) -> list[str]:
        return [name for name, mark in self.known.items() if mark and self._is_other(name, mark.split()[:1])]

    def _is_other(self, name: str, mark: list[str]) -> bool:
        try:
            about = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            state = about.st_dev, about.st_ino, about.st_ctime_ns
        except OSError:
            state = None
        if state is None or state != self._states.get(name):  # else it isn't opened
            if mark != self._mark(name).split()[:1]:
                return True
            self._states[name] = state
        return False

    def _mark(self, name: str) -> str:
        """
        A word by which the file or folder is told from any that is made later, or "-" if there is none; and for
        settings of git another one for what they say, but of branches.
        """
        try:
            with OwnedFd(open_beneath(self._folder, os.fsencode(name), PLACE | os.O_NOFOLLOW)) as fd:
                about = os.fstat(fd)
                which = _word(f"{about.st_dev} {about.st_ino} {stat.S_IFMT(about.st_mode)}".encode() + made_at(fd))
        except OSError:
            return "-"
        has_branches = os.path.basename(name) == "config" and stat.S_ISREG(about.st_mode)
        # Of longer ones the rest would be unseen.
        said = without_branches(self._read(name)) if has_branches and about.st_size < _MOST_SETTINGS else None
        return which if said is None else f"{which} {_word(said)}"

    def _about(self, name: str) -> os.stat_result | None:
        above, _, last = name.rpartition("/")
        try:
            fd = open_beneath(self._folder, os.fsencode(above) or b".", FOLDER)
        except OSError:
            return None
        try:
            return os.stat(last, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        finally:
            os.close(fd)

    def _is_left(self, name: str) -> bool:
        """Whether *name* is an empty folder that another sandbox has, or that was left by a program that was killed."""
        try:
            about = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            if not stat.S_ISDIR(about.st_mode) or stat.S_IMODE(about.st_mode) != _MODE:
                return False
            with beneath(self._folder, name) as fd:
                return not os.listdir(fd)
        except OSError:
            return False

    def _is_folder_of_repository(self, name: str) -> bool:
        """Whether git or a relative has to write to the folder, in which only some names are obeyed."""
        about = self._about(name)
        return (plain(name.rpartition("/")[2]) in NAMES and about is not None and stat.S_ISDIR(about.st_mode)
                and name not in self._made)

    @staticmethod
    def _inside(repository: str) -> list[str]:
        return [f"{repository}/{each}" if repository else each
                for each in INSIDE.get(plain(os.path.basename(repository)), INSIDE[""])]

    def _make(self, name: str, mode: int | None) -> bool:
        """Make the folder *name* with *mode*, or without one a repository's empty setting: whether it is for a sandbox."""
        above, _, last = name.rpartition("/")
        if mode is None and not name.endswith((*_FILES, *_FOLDERS)):
            return False
        try:
            fd = open_beneath(self._folder, os.fsencode(above) or b".", FOLDER)
        except OSError:
            return False
        try:
            if mode is not None or last in _FOLDERS:
                os.mkdir(last, 0o755, dir_fd=fd)
                if mode is not None:
                    os.chmod(last, mode, dir_fd=fd)
            else:
                os.close(os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=fd))
        except FileExistsError:
            return mode is not None
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return False  # nor can the sandbox make it
            raise RequestRejected(f"{quoted(name)} can't be made, so that no other takes its place:"
                                  f" {reason_of(error)}") from None
        finally:
            os.close(fd)
        self._made.append(name)
        return True

    def _rename(self, name: str) -> bool:
        above, _, last = name.rpartition("/")
        try:
            fd = open_beneath(self._folder, os.fsencode(above) or b".", FOLDER)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise
        try:
            os.stat(last, dir_fd=fd, follow_symlinks=False)
            plainly = last.lstrip(".").encode("utf-8", "ignore")[:_MOST_NAME].decode("utf-8", "ignore")
            # A name that nobody can guess is the last one, since a sandbox may have made all others.
            for word in ("", *(f"{number}." for number in range(1, _NUMBERED)), f"{os.urandom(8).hex()}."):
                new = f"{AWAY}{word}{plainly}{_AWAY_END}"
                try:
                    os.stat(new, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    os.rename(last, new, src_dir_fd=fd, dst_dir_fd=fd)
                    return True
            raise OSError("too many of that name were put away")
        except FileNotFoundError:
            return False
        finally:
            os.close(fd)
