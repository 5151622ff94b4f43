"""
The root of an image: places in it for mounts, and the root as it was at a checkpoint.

Runs in:   the porter; of the sandbox's processes only the first, which opens no file, is there when a root is replaced.
Trust:     none in the content. No link in it is followed.
Source:    pivot_root(2), move_mount(2), mount_namespaces(7), the kernel's overlayfs document

Theory of operation. What a mounted overlay has below it isn't changed, and the root can't be unmounted. So there is a new
overlay, of the same layers and a copy of the upper one as it was kept. In a mount namespace of the porter's own, where the
upper layers are uncovered, it is mounted; in the sandbox's it covers the old root, gets all that was mounted on that, and
changes places with it. The old one is then unmounted, which the kernel refuses as long as anybody uses it: then the two
change back.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence

from leeward._native import mounts as native
from leeward._native.beneath import open_beneath
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Table, returns
from leeward.crossing import layers, overlay_states
from leeward.crossing.overlay_states import Lost, Room
from leeward.crossing.walk import opened
from leeward.errors import LeewardError
from leeward.isolation import mounts
from leeward.spec.sandbox import Root

_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A folder of each image's root that is leeward's, and stays that. The porter's own mounts cover it.
_STAGE = "/sys"
#: What was the upper layer and its overlay's own folder, until the old root is unmounted.
_OLD = {mounts.UPPER: "old.upper", mounts.WORK: "old.work"}


def make(path: str, *, file: bool, root: int | None = None) -> None:
    """
    Make the mount point *path* below *root*, the present one, if it is missing: LeewardError if a link of the image is in
    the way.
    """
    *above, name = path.strip("/").split("/")
    at = os.open("/", _LOOK) if root is None else os.dup(root)
    try:
        for part in above if file else (*above, name):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            below = os.open(part, _LOOK, dir_fd=at)
            os.close(at)
            at = below
        if file:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=at))
            if not stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                raise NotADirectoryError
    except (NotADirectoryError, FileNotFoundError):
        raise LeewardError(f"{path!r:.200} is, or lies behind, a link or a file of the image") from None
    finally:
        os.close(at)


class Copied:
    """
    A copy of the state *name* of the sandbox's root, or without a name of the present one, in which *paths*, or all if there
    are none, are as they were at first. The folder *first* covers the upper layers, which may take *most* bytes.
    LeewardError, OSError if it can't be made.
    """

    def __init__(self, root: Root, first: str, most: int, *, name: str = "", paths: Sequence[bytes] = ()) -> None:
        self._root, self._first = root, first
        self._here = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._points = _mounted_on_root()
        self._base = layers.upper_of_root(first, ".")
        room = Room(self._base, most, weighed=bool(root.disk))
        if name:
            self._copy = overlay_states.copy_of(self._base, mounts.ROOT, name, room)
        else:
            self._copy = overlay_states.copy_without(self._base, mounts.ROOT, paths, room)
            self._begin(paths)

    def _begin(self, paths: Sequence[bytes]) -> None:
        """Make in the copy what leeward puts into each new root, as far as *paths* have it."""
        def is_missing(name: str) -> bool:
            return not paths or any((name + "/").startswith(os.fsdecode(path) + "/") for path in paths)

        with opened(os.open(self._copy, _LOOK, dir_fd=self._base)) as top:
            for name in filter(is_missing, mounts.OURS):
                os.mkdir(name, 0o755, dir_fd=top)
                if name == "tmp":
                    os.chmod(name, 0o1777, dir_fd=top)
            for text in self._root.texts:
                if is_missing(name := text.target.lstrip("/")):
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                    with opened(open_beneath(top, os.fsencode(name), flags, 0o644)) as fd:
                        overlay_states.put(fd, 0, text.content)

    def attach(self, lowers: int) -> int:
        """Take the detached layers *lowers*. Returns a copy of them, which isn't mounted."""
        native.move_mount(lowers, _STAGE)
        return native.copy(_STAGE)

    def replace(self) -> None:
        """Make it the root. LeewardError, OSError: nothing has changed; or Lost."""
        base = self._base
        _rename(base, _OLD)
        try:
            os.rename(self._copy, mounts.UPPER, src_dir_fd=base, dst_dir_fd=base)
            os.mkdir(mounts.WORK, 0o755, dir_fd=base)
            Table([mounts.overlay_step(self._root, _STAGE, _STAGE, self._first)]).run()
            made = native.copy(_STAGE, recursive=False)
            Table([returns(Call.SETNS, self._here, Clone.NEWNS)]).run()
            for point in self._points:
                make(point, file=not os.path.isdir(point), root=made)
            if not _replace(made, self._points):
                raise overlay_states.used()
        except (LeewardError, OSError):
            overlay_states.empty(base, mounts.ROOT, *_OLD)
            _rename(base, {old: name for name, old in _OLD.items()})
            raise
        overlay_states.empty(base, mounts.ROOT, *_OLD.values())


def _rename(base: int, names: dict[str, str]) -> None:
    for name, other in names.items():
        os.rename(name, other, src_dir_fd=base, dst_dir_fd=base)


def _mounted_on_root() -> dict[str, int]:
    """The paths on the root itself where something is mounted, and how many mounts lie there, one upon the other."""
    with opened(os.open("/", _LOOK)) as root:
        found, points = native.mount_id(root), dict[str, int]()
    above = {(row.parent, row.point): row.number for row in native.mounted()}
    for parent, point in [each for each in above if each[0] == found]:
        points[point] = 0
        while (parent := above.get((parent, point), 0)):
            points[point] += 1
    return points


def _replace(made: int, points: Mapping[str, int]) -> bool:
    """Make the detached *made* the root; False, and it isn't, if the old one is in use."""
    try:
        native.move_mount(made, "/")
        _exchange(made, points)
        if layers.uncover("."):
            return True
        with opened(os.open("/..", _LOOK)) as old:  # which lies on the new one
            _exchange(old, points)
        Table([native.unmount_step(".")]).run()
        return False
    except (LeewardError, OSError) as error:
        raise Lost(str(error)) from None
    finally:
        os.close(made)


def _exchange(root: int, points: Mapping[str, int]) -> None:
    """Make *root*, a mount on the present one, the root, with all that is mounted at *points*; the other lies on it then."""
    os.chdir(root)
    for point, count in points.items():
        if count > 1:  # a path leads to the uppermost: what is moved one by one lies the other way round, and is moved again
            _move(point, _STAGE.lstrip("/"), count)
            _move(_STAGE.lstrip("/"), point.lstrip("/"), count)
        else:
            _move(point, point.lstrip("/"), 1)
    Table([returns(Call.PIVOT_ROOT, ".", ".")]).run()


def _move(point: str, to: str, count: int) -> None:
    for _ in range(count):
        with opened(os.open(point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as mount:
            native.move_mount(mount, to)
