"""
A keeper's mount template: the root that its runners get copies of.

Runs in:   laid out in the zygote; `open` and `build` in the keeper.
Order:     what is bound is opened while the keeper still has its first host uid (the
           interpreter may lie in a home of mode 0700), everything else after.
Stands if: Landlock is wrong. What is not mounted has no name here.
Leaves:    descriptors that were open before; the runner closes those.
Source:    mount_namespaces(7), mount_setattr(2), mount(2), pivot_root(2)

A tmpfs with read-only binds. It is a table of system calls, as the way of a runner is: in bytecode
it cost each keeper 300 pages of its own, and 3 ms.

What each bind is, a folder, a file, a link, or not there, is seen when the table is laid out, on the host. What a
keeper finds may differ: then the kernel refuses what doesn't fit, and no keeper is made; but a bind that may be
missing is left out.

A new /proc in a user namespace needs another one, fully visible, in the same mount
namespace. The template's is that of a pid namespace which is already dead: it
shows no process, and each runner's own lies on top of it.

Linux before 5.12 sets attributes of mounts that are attached only, and of one at a time: there the
keeper does it, in Python, while nobody else is in its namespace yet.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
from collections.abc import Iterator, Sequence

from leeward._native import mounts as native
from leeward._native.mounts import AT_FDCWD, MountAttr
from leeward._native.steps import Block, Call, Cell, Step, Table, fails, gives, returns
from leeward.dataclass import dataclass, replace
from leeward.errors import Bug, KernelRefusal, Unsupported
from leeward.isolation.landlock import SEALED
from leeward.spec.sandbox import Bind, Text, View

#: Where the new root is mounted until it is the root. Any folder does; what it hides comes back.
_STAGE = "/tmp"

_READ_ONLY = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV
# A device on a read-only mount is written to all the same, but its times are the host's to change.
_DEVICE = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NOEXEC
_ROOT = MountAttr.NOSUID | MountAttr.NODEV
_PROC = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC

_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TOUCH = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

#: World-readable, in every root, and in no Landlock rule: a runner that can open it isn't restricted.
_SEALED_TEXT = Text(SEALED, b"A job that can read this is not held by Landlock.\n")

_HINTS = dict.fromkeys((errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EROFS), "a link or a file is in the way")


@dataclass(frozen=True, slots=True)
class Source:
    """
    A part of the host that is there, and where it goes.

    Attributes:
        fd: a detached copy of it, once it is opened.
        link: what it says where it is a symbolic link; then nothing of it is mounted.
    """

    bind: Bind
    fd: Cell
    link: str = ""

    @property
    def attributes(self) -> MountAttr:
        return _DEVICE if self.bind.device else _READ_ONLY


def sources(view: View) -> Iterator[Source]:
    """
    What of *view*'s binds the host has.

    A link is never followed: a bind that must be there can't be one, and an optional one is shown as a link,
    that leads where it leads inside.

    Raises:
        Unsupported: a bind that isn't optional is not there, or isn't what it has to be.
    """
    for bind in view.binds:
        try:
            mode = os.lstat(bind.source).st_mode
            link = os.readlink(bind.source) if stat.S_ISLNK(mode) else ""
        except OSError as error:
            if bind.optional:
                continue
            have = f"lstat: {errno.errorcode.get(error.errno or 0, error.errno)}"
            raise Unsupported(f"bind {bind.source}", have=have, need="a readable file or folder") from error
        wanted = "file" if bind.file or bind.device else "folder"
        if (link and bind.optional) or (stat.S_ISDIR(mode) is ("folder" == wanted) and not link):
            yield Source(bind, Cell(bind.source), link)
        elif not bind.optional:
            have = f"a link to {link}" if link else "a folder" if stat.S_ISDIR(mode) else "a file"
            raise Unsupported(f"bind {bind.source}", have=have, need=f"a {wanted}")


class Template:
    """
    The steps to a root; they can be taken once.

    Args:
        first: taken before all others.
        before: taken when all is opened.
        after: taken when the root is the new one.

    Raises:
        Unsupported: as `sources`.
        Bug: *view* has a target that is no path from the root.
    """

    def __init__(self, view: View, first: Sequence[Step] = (), before: Sequence[Step] = (),
                 after: Sequence[Step] = ()) -> None:
        here = tuple(sources(view))
        recursively = native.sets_attributes()
        self._late = () if recursively else tuple(source for source in here if not source.link)
        parts = (
            [*first, *(step for source in here for step in _open(source, recursively))],
            [*before, *_attach(view, here)],
            list(_proc_of_nobody()),
            [*_finish(here), *after],
        )
        self.table = Table(step for part in parts for step in part)
        self._opened, self._attached, self._proc = itertools.accumulate(map(len, parts[:-1]))

    def open(self) -> None:
        """
        Take a detached copy of every source, with its attributes set.

        By descriptor, before any path of ours exists.

        Raises:
            KernelRefusal: the kernel won't.
        """
        self.table.run(0, self._opened)

    def build(self) -> None:
        """
        Make the template and pivot into it. Irreversible; closes what was opened.

        Needs a mount namespace of its own, all capabilities in its user namespace, and an
        id map: the files of the root are made by the caller's mapped uid.

        Raises:
            KernelRefusal: a link or a file is in the way, or the kernel won't.
        """
        self.table.run(self._opened, self._attached)
        for source in self._late:
            fd = self.table.value(source.fd)
            if fd >= 0:
                _set_one_by_one(fd, source.attributes)
        self.table.run_in_pid_namespace(self._attached, self._proc)
        self.table.run(self._proc)


def _open(source: Source, recursively: bool) -> list[Step]:
    if source.link:
        return []
    optional = source.bind.optional
    steps = [native.copy_step(source.fd, source.bind.source, optional=optional)]
    if source.bind.file or source.bind.device:
        # It wasn't a link when it was looked at. The kernel mounts a folder on folders alone, but a link on a file.
        absent = (errno.EBADF,) if optional else ()
        steps.append(fails(Call.READLINKAT, source.fd, "", Block(bytes(1)), 1,
                           errnos=(errno.EINVAL, errno.ENOENT, *absent)))
    if recursively:
        steps.append(native.attributes_step(source.fd, source.attributes, optional=optional))
    return steps


def _attach(view: View, here: Sequence[Source]) -> Iterator[Step]:
    """
    All of the root but /proc, below the current folder.
    """
    root = Cell("root")
    yield native.private_step()
    yield from native.filesystem_steps(root, "tmpfs", {"size": "1m", "nr_inodes": "512", "mode": "0755"}, _ROOT)
    yield native.move_step(root, _STAGE)
    yield returns(Call.CLOSE, root)
    yield returns(Call.CHDIR, _STAGE)
    for source in here:
        yield from _put(source)
    for text in (*view.texts, _SEALED_TEXT):
        fd = Cell(text.target)
        way, folder, name = _way(text.target)
        yield from way
        yield gives(fd, Call.OPENAT, folder, name, _TOUCH | os.O_EXCL, 0o444)
        yield returns(Call.WRITE, fd, Block(text.content), len(text.content), value=len(text.content))
        yield returns(Call.CLOSE, fd)
        yield from _close(folder)
    for link in view.links:
        yield from _link(link.target, link.to)
    for target in ("/proc", *view.scratch.targets):
        way, folder = _walk(target, target.lstrip("/").split("/"))
        yield from [*way, *_close(folder)]


def _put(source: Source) -> Iterator[Step]:
    """
    The source to its place.
    """
    target, optional = source.bind.target, source.bind.optional
    if source.link:
        yield from _link(target, source.link)
    elif source.bind.file or source.bind.device:
        way, folder, name = _way(target)
        fd = Cell(target)
        yield from way
        yield gives(fd, Call.OPENAT, folder, name, _TOUCH, 0o444)
        yield returns(Call.CLOSE, fd)
        yield native.move_step(source.fd, name, folder, optional=optional)
        yield from _close(folder)
    else:
        way, folder = _walk(target, target.lstrip("/").split("/"))
        yield from way
        yield native.move_step(source.fd, "", folder, optional=optional)
        yield from _close(folder)


def _proc_of_nobody() -> Iterator[Step]:
    """
    For pid 1 of a pid namespace that ends then.
    """
    proc, hints = Cell("proc"), {errno.EPERM: "no new /proc here: parts of the host's /proc are masked"}
    for step in native.filesystem_steps(proc, "proc", {}, _PROC):
        yield replace(step, hints=hints) if step.call is Call.FSMOUNT else step
    yield native.move_step(proc, "./proc")


def _finish(here: Sequence[Source]) -> Iterator[Step]:
    for source in here:
        if not source.link:
            yield returns(Call.CLOSE, source.fd, unless=(errno.EBADF,) if source.bind.optional else ())
    yield returns(Call.PIVOT_ROOT, ".", ".")
    yield native.unmount_step(".")
    # The binds were copied in the host's namespace. Where mounts are shared there, as under systemd, what the host
    # mounts later would come here too, with none of our attributes. Since 5.12 they were cut off when they were copied.
    yield native.private_step()
    yield returns(Call.CHDIR, "/")
    yield native.remount_step("/", _READ_ONLY)


def _way(target: str) -> tuple[list[Step], Cell | int, str]:
    """
    Steps to the folder that *target* is in, the descriptor that they leave, and target's name there.
    """
    *folders, name = target.lstrip("/").split("/")
    if name in ("", ".", ".."):
        raise Bug(f"a mount on {target!r}")
    return *_walk(target, folders), name


def _walk(target: str, folders: Sequence[str]) -> tuple[list[Step], Cell | int]:
    """
    Steps from the current folder to the last of *folders*, and the descriptor that they leave.

    Those that are missing are made. No link is followed on the way: one in a bind could lead
    out of the new root, while the old one is still ours.
    """
    steps: list[Step] = []
    at: Cell | int = AT_FDCWD
    for folder in folders:
        if folder in ("", ".", ".."):
            raise Bug(f"a mount on {target!r}")
        below = Cell(f"{folder!r} of {target!r}")
        steps += [
            replace(returns(Call.MKDIRAT, at, folder, 0o755, unless=(errno.EEXIST,)), hints=_HINTS),
            replace(gives(below, Call.OPENAT, at, folder, _WALK, 0), hints=_HINTS),
            *_close(at),
        ]
        at = below
    return steps, at


def _close(fd: Cell | int) -> list[Step]:
    return [returns(Call.CLOSE, fd)] if isinstance(fd, Cell) else []


def _link(target: str, to: str) -> Iterator[Step]:
    way, folder, name = _way(target)
    yield from way
    yield returns(Call.SYMLINKAT, to, folder, name)
    yield from _close(folder)


def _set_one_by_one(fd: int, attributes: MountAttr) -> None:
    """
    Set *attributes* on the attached mount *fd* and on all below it. On top of those that each has: in a user
    namespace they can't be taken off, and need not.

    Raises:
        KernelRefusal: one of them can't be reached, since another covers it.
    """
    todo = {native.mount_id(fd): f"/proc/self/fd/{fd}"}
    with open("/proc/self/mountinfo") as file:
        rows = [row.split(" ", 5)[:5] for row in file]
    while todo:
        number, path = todo.popitem()
        todo |= {int(child): _unescaped(point) for child, parent, _, _, point in rows if int(parent) == number}
        at = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if path.startswith("/proc/self/fd/") else os.O_NOFOLLOW))
        try:
            if native.mount_id(at) != number:
                raise KernelRefusal("mount", f"{path!r}, MS_REMOUNT", errno.EBUSY, "another mount covers it")
            has = MountAttr(os.fstatvfs(at).f_flag & (_READ_ONLY | _DEVICE))
            native.remount(f"/proc/self/fd/{at}", has | attributes)
        finally:
            os.close(at)


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
