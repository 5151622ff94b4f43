"""
The home folder of an agent's sandbox, on its scratch file system or one of the host that is kept, with the account's
entry; and hidden names in mounts.

Runs in: the porter, before any process of the client is in the sandbox. Trust: none in a home that is kept, where another
sandbox's processes may be, and make links. Leaves: mounts that no process of the sandbox can remove. A mount on a file or
a folder ends when the *host* renames another one over it, or removes it: a later file of that name is visible
(docs/agent-command.md). Source: mount_namespaces(7): "a mount point in one namespace may be removed in another"
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward.crossing.walk import opened
from leeward.errors import KernelRefusal, LeewardError
from leeward.spec.folders import within

_ATTRIBUTES = MountAttr.NOSUID | MountAttr.NODEV
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
#: Names on the scratch file system, whose root nobody sees: the home, a file that nobody may read, an empty folder.
_HOME, _FILE, _FOLDER = "home.0", "hidden.0", "hidden.1"
#: Times that a name is opened to be covered; the client hides its folder, or ends the agent, where that isn't enough.
_TRIES = 100
#: Bytes of an image's file of users that is added to, at most.
_MOST_ACCOUNTS = 1 << 20

#: Targets of mounts, each with device and inode of what is mounted there; None where these aren't known.
Tops = Mapping[str, tuple[int, int] | None]
_NONE: Tops = {}


class AgentHome:
    """
    Mounts the home folder at *path*: a new one, or the tree *kept*; and makes the mount points *targets* in it, with
    True for a file. *scratch*, a detached copy of the root of the scratch file system, is mounted where no process of the
    sandbox reaches it; it stays the caller's, who may pass it to `hide_all`. *in_image*: on the root of an image, where
    *path* is a folder without links on the way.
    """

    def __init__(self, scratch: int, path: str, targets: Mapping[str, bool], kept: int = -1, *,
                 in_image: bool = False) -> None:
        self.scratch, self._path, self._in_image = scratch, path, in_image
        os.mkdir(_FOLDER, 0o555, dir_fd=scratch)
        os.close(os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o000, dir_fd=scratch))
        os.mkdir(_HOME, 0o700, dir_fd=scratch)
        os.makedirs(path, 0o755, exist_ok=True)
        # What the view shows below the path, such as an interpreter that the user has installed, is mounted again.
        own = {} if in_image else {each: native.copy(each) for each in _mounts_in(path)}
        native.move_mount(scratch, path)  # below the home's own mount, where no process reaches it
        if not native.sets_attributes():  # programs may run when copies of these are attached
            for name in (_FILE, _FOLDER):
                _attach(scratch, name, os.path.join(path, name), MountAttr.RDONLY)
        if kept < 0:
            _attach(scratch, _HOME, path, MountAttr(0))
        else:
            native.attach(kept, path, _ATTRIBUTES)
        places = {**targets, **{each: not stat.S_ISDIR(os.fstat(tree).st_mode) for each, tree in own.items()}}
        for place, is_file in places.items():
            self._make(place, is_file)
        # No process may rename, move or remove a folder in which one of these lies.
        for place in between(places, (path, *places)):
            _onto_itself(place, MountAttr(0))
        for place, tree in own.items():
            with _opened(place) as fd, opened(tree):
                native.move_onto(tree, fd)
        self._places = tuple(places)

    def _make(self, path: str, is_file: bool) -> None:
        """Make the mount point *path*, if it is missing. LeewardError if something else is in its place."""
        fd, parts = os.open(self._path, _LOOK | os.O_DIRECTORY), os.path.relpath(path, self._path).split("/")
        try:
            for left, part in zip(reversed(range(len(parts))), parts, strict=True):
                is_last_file = is_file and not left
                with contextlib.suppress(FileExistsError):
                    if is_last_file:
                        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=fd))
                    else:
                        os.mkdir(part, 0o755, dir_fd=fd)
                below = os.open(part, _LOOK, dir_fd=fd)
                os.close(fd)
                fd = below
                if not (stat.S_ISREG if is_last_file else stat.S_ISDIR)(os.fstat(fd).st_mode):
                    raise LeewardError(f"{path!r:.200} can't be shown: in the home that was kept something else is there")
        finally:
            os.close(fd)

    def check(self) -> None:
        """Check that what is mounted in the home is at its path: a process that has the same home may have moved a folder."""
        for path in self._places:
            with _opened(path, {path: None}):
                pass

    def put(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Mount files with these contents on their paths, in place of the view's files; in an image add them to its own."""
        for number, (path, content) in enumerate(texts):
            if self._in_image:
                _add_account(path, content)
                continue
            name = f"text.{number}"
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=self.scratch)
            with open(fd, "wb") as file:
                file.write(content)
            _attach(self.scratch, name, path, MountAttr.RDONLY)


def _add_account(path: str, line: bytes) -> None:
    """
    Add a user or group to the image's file *path*, a name below /etc, unless it has one with this id; with another name
    if that is taken. What is no file there, or a long one, stays as it is, and isn't opened: an overlay copies what is
    opened for writing.
    """
    with contextlib.suppress(OSError):
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_ACCOUNTS:
            return
        with open(path, "rb") as file:
            data = file.read()
        rows, (name, _, own, *_) = [row.split(b":", 3) for row in data.splitlines()], line.split(b":")
        if not any(row[2:3] == [own] for row in rows):
            taken = any(row[0] == name for row in rows)
            with open(path, "ab") as file:
                file.write((b"" if data.endswith(b"\n") or not data else b"\n") + (name + own if taken else name)
                           + line[len(name):])


def _mounts_in(folder: str) -> Iterator[str]:
    """The paths of the outermost mounts below *folder*."""
    for name in sorted(os.listdir(folder)):
        path = f"{folder}/{name}"
        if os.path.ismount(path):
            yield path
        elif os.path.isdir(path) and not os.path.islink(path):
            yield from _mounts_in(path)


def guard(protect: Sequence[str], pin: Sequence[str], tops: Tops) -> None:
    """
    Make the names *protect* read-only, but for links. No process may rename, move or remove the folders *pin*: they are
    mounted on themselves, writable. So is each folder between a mount point of *tops* and such a name: otherwise a
    process could rename it, and make another one in its place.
    """
    for path in between((*protect, *(f"{path}/" for path in pin)), tops):
        _onto_itself(path, MountAttr(0), tops)
    for path in protect:
        _onto_itself(path, MountAttr.RDONLY, tops)


def _onto_itself(path: str, attributes: MountAttr, tops: Tops = _NONE) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(path, tops) as fd:
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            tree = native.copy(fd)
            native.attach(tree, fd, _ATTRIBUTES | attributes)
            os.close(tree)


def hide_all(scratch: int, paths: Iterable[str], tops: Tops) -> int:
    """
    Cover *paths* in mounts on *tops* that exist and aren't covered: a file or a link by a file that nobody may read, a
    folder by an empty one, both of *scratch*, as an `AgentHome` has mounted it. Returns the number of them. LeewardError
    if a mount isn't at its path, where its names could be elsewhere; KernelRefusal for a name that was replaced each time
    before its cover was there.
    """
    covers = [os.stat(name, dir_fd=scratch) for name in (_FILE, _FOLDER)]
    return sum(_hide(scratch, path, covers, tops) for path in paths)


def _hide(scratch: int, path: str, covers: Sequence[os.stat_result], tops: Tops) -> bool:
    """
    Nothing is mounted on what was removed since it was opened, or had another file renamed over it. So *path* is opened
    again, until it is covered or is no more.
    """
    for left in reversed(range(_TRIES)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(path, tops) as fd:
            about = os.fstat(fd)
            if any(os.path.samestat(about, cover) for cover in covers):
                return False
            try:
                _attach(scratch, _FOLDER if stat.S_ISDIR(about.st_mode) else _FILE, fd, MountAttr.RDONLY)
            except KernelRefusal as error:
                if error.errno != errno.ENOENT or not left:
                    raise
                continue
            return True
        break
    return False


def _attach(scratch: int, name: str, to: str | int, attributes: MountAttr) -> None:
    """Mount the file or folder *name* of the scratch file system."""
    with opened(os.open(name, _LOOK, dir_fd=scratch)) as fd, opened(native.copy(fd, recursive=False)) as tree:
        native.attach(tree, to, _ATTRIBUTES | attributes)


def between(paths: Iterable[str], targets: Iterable[str]) -> list[str]:
    """The folders above *paths* that are inside one of *targets*, the outer ones first."""
    found, targets = set(), tuple(targets)
    for path in paths:
        above = os.path.dirname(path)
        while above not in targets and any(above.startswith(f"{target}/") for target in targets):
            found.add(above)
            above = os.path.dirname(above)
    return sorted(found)


@contextlib.contextmanager
def _opened(path: str, tops: Tops = _NONE) -> Iterator[int]:
    """
    Open *path* without following a link on the way: a project's links may lead anywhere in the sandbox. LeewardError if
    one of *tops* on the way isn't mounted at its path.
    """
    left = sorted(top for top in tops if within(path, top))  # the outer ones first
    fd, here = os.open("/", _LOOK | os.O_DIRECTORY), ""
    try:
        for part in path.strip("/").split("/"):
            try:
                below = os.open(part, _LOOK, dir_fd=fd)
            except (FileNotFoundError, NotADirectoryError):
                if left:
                    raise _moved(left[0]) from None
                raise
            above, fd, here = fd, below, f"{here}/{part}"
            with opened(above):
                if left and here == left[0] and not _is_mounted(above, fd, tops[left.pop(0)]):
                    raise _moved(here)
        yield fd
    finally:
        os.close(fd)


def _is_mounted(above: int, fd: int, which: tuple[int, int] | None) -> bool:
    about = os.fstat(fd)
    return native.mount_id(above) != native.mount_id(fd) and which in (None, (about.st_dev, about.st_ino))


def _moved(path: str) -> LeewardError:
    return LeewardError(f"what is mounted on {path!r:.200} isn't there: it, or a folder above it, was moved")
