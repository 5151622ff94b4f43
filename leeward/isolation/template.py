"""
A keeper's mount template: the root folder that each of its runners gets a copy of.

Runs in:   the zygote lays out the steps; `open` and `build` run in the keeper.
Order:     the sources of binds are opened while the keeper still has its first host uid (the interpreter may be in a
           home of mode 0700). Everything else follows.
Stands if: Landlock is wrong. A file that isn't mounted has no path in this root.
Leaves:    descriptors that were opened before; the runner closes them.
Source:    mount_namespaces(7), mount_setattr(2), mount(2), pivot_root(2)

The template is a tmpfs with read-only binds. Its setup is a table of system calls, as a runner's is: as bytecode, it
made each keeper write to 300 pages, and took 3 ms.

When the table is laid out, on the host, each bind is looked up: it is a folder, a file, a link, or missing. If that has
changed when a keeper takes the steps, the kernel refuses a mount of the wrong type, and the keeper fails; an optional
bind that is missing then is left out.

A process in a user namespace can mount a new /proc only if another, fully visible /proc is in the same mount namespace.
The template has the /proc of a pid namespace that has ended: it shows no process, and each runner mounts its own on top
of it. It is one for all keepers of a zygote (backstage.py): for each file system of the machine the kernel keeps 16 bytes
in every group of memory (docs/measurements/trials.md).

Linux before 5.12 can set attributes only on attached mounts, one at a time. On such a kernel the keeper sets them in
Python, while no other process is in its namespace yet.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from leeward._native import mounts as native
from leeward._native.mounts import AT_FDCWD, MountAttr
from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Step, Table, fails, gives, returns
from leeward.base.dataclass import dataclass, replace
from leeward.errors import Bug, Unsupported
from leeward.isolation.landlock import SEALED
from leeward.isolation.mounts import DISK, LAYERS, MADE, PROC_LINKS, SCRATCH, STAGED
from leeward.spec.machine import FOLDERS, SIZED
from leeward.spec.sandbox import MOST_BUNDLE, TRUST, TRUST_JAVA, Bind, Text, View, has_trust

#: The greatest number of bytes of the root's own files.
_SIZE = 1 << 20

#: Where a zygote's root has a whole /proc without processes.
NOBODY = "/.nobody"

#: The folder where the new root is mounted until pivot_root(2). Any folder works; its content is only hidden meanwhile.
_STAGE = "/tmp"

_READ_ONLY = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV
# A read-only mount doesn't prevent writes to a device, only changes of its node's times.
_DEVICE = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NOEXEC
_ROOT = MountAttr.NOSUID | MountAttr.NODEV
_PROC = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC

_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TOUCH = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

#: A world-readable file in every root, for which there is no Landlock rule: a runner that can open it isn't restricted.
_SEALED_TEXT = Text(SEALED, b"A job that can read this is not held by Landlock.\n")

_HINTS = dict.fromkeys((errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EROFS), "a link or a file is in the way")


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder of the host that exists, with its target."""

    bind: Bind
    fd: Cell        # a detached copy of the mount, once it is opened
    link: str = ""  # the link's text if the source is a symbolic link; then nothing is mounted

    @property
    def attributes(self) -> MountAttr:
        return _DEVICE if self.bind.device else _READ_ONLY


def sources(view: View) -> Iterator[Source]:
    """
    The binds of *view* whose source exists on the host; Unsupported if a required one is missing, or has the wrong
    type. Links are never followed: a required bind can't be a link, and an optional one becomes a link with the same
    text inside.
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
        if (link and bind.optional) or (stat.S_ISDIR(mode) is (wanted == "folder") and not link):
            yield Source(bind, Cell(bind.source), link)
        elif not bind.optional:
            have = f"a link to {link}" if link else "a folder" if stat.S_ISDIR(mode) else "a file"
            raise Unsupported(f"bind {bind.source}", have=have, need=f"a {wanted}")


def layers(view: View) -> tuple[tuple[Source, ...], tuple[Source, ...]]:
    """
    The layers of an image's root that the keeper opens, and those that are handed to it, the disk's folder last. They
    aren't looked up: only a keeper sees the host's whole tree, and that one read-only.
    """
    if view.root is None:
        return (), ()
    found = tuple(Source(Bind(path, f"{LAYERS}/{number}"), Cell(path)) for number, path in enumerate(view.root.layers))
    disk = (Source(Bind(view.root.disk, DISK), Cell(view.root.disk)),) if view.root.disk else ()
    return ((), (*found, *disk)) if view.root.handed else (found, disk)


class Template:
    """
    The steps that build the root, which can be taken once. Unsupported as for `sources`; Bug if *view* has a target
    that isn't an absolute path.

    Args:
        first: steps to take before all others.
        before: steps to take when all sources are open.
        after: steps to take after pivot_root(2).
        written: cells that get descriptors of the files of `written_by_daemon`, open for writing, in that order.
        bounds: returns steps that bound something by a detached mount of /proc, or by the host's, for None.
        layers: both parts of `layers`, of an image's root. The cells of the handed ones have descriptors after the
            steps *first*.
    """

    def __init__(self, view: View, first: Sequence[Step] = (), before: Sequence[Step] = (),
                 after: Sequence[Step] = (), written: Sequence[Cell] = (),
                 layers: tuple[Sequence[Source], Sequence[Source]] = ((), ()),
                 bounds: Callable[[Cell | None], Sequence[Step]] = lambda _proc: ()) -> None:
        opened = (*sources(view), *layers[0])
        here = (*opened, *layers[1])
        recursively = native.sets_attributes()
        self._late = () if recursively else tuple(source for source in here if not source.link)
        shared = os.path.isdir(NOBODY)
        parts = (
            [*first, *(step for source in opened for step in open_steps(source, recursively=recursively))],
            [*before, *(() if recursively else bounds(None)), *_attach(view, here),
             *_opened_for_writing(written_by_daemon(view), written)],
            list(_proc_of_nobody(bounds if recursively else lambda _proc: (), shared)),
            [*(_shared_proc() if shared else ()), *close_steps(here), *enter_steps(), *after],
        )
        self.table = Table(step for part in parts for step in part)
        self._opened, self._attached, self._proc = itertools.accumulate(map(len, parts[:-1]))

    @property
    def is_late(self) -> bool:
        """Whether attributes are set in Python."""
        return bool(self._late)

    @property
    def aside(self) -> tuple[int, int]:
        """The first step that is taken in a pid namespace of its own, if any is, and the first one behind those."""
        return self._attached, self._proc

    def open(self) -> None:
        """Open a detached copy of every source, with its mount attributes set."""
        self.table.run(0, self._opened)

    def build(self) -> None:
        """
        Build the template and pivot into it. Irreversible; closes the sources. Needs a mount namespace of its own, all
        capabilities in its user namespace, and an id map, since the files of the root belong to the caller's mapped
        uid. KernelRefusal, for instance, if a link or a file is in the way.
        """
        self.table.run(self._opened, self._attached)
        for source in self._late:
            fd = self.table.value(source.fd)
            if fd >= 0:
                native.set_one_by_one(fd, source.attributes)
        if self._attached < self._proc:
            self.table.run_aside(self._attached, self._proc, namespaces=Clone.NEWPID)
        self.table.run(self._proc)


def open_steps(source: Source, *, recursively: bool) -> list[Step]:
    """Open a detached copy of *source*. If *recursively*, its attributes are set as well, which needs Linux 5.12."""
    if source.link:
        return []
    optional = source.bind.optional
    steps = [native.copy_step(source.fd, source.bind.source, optional=optional)]
    if source.bind.file or source.bind.device:
        # The source wasn't a link when it was looked up. The kernel refuses to mount a link on a folder, but not on a
        # file, so this step checks that the source is no link now.
        absent = (errno.EBADF,) if optional else ()
        steps.append(fails(Call.READLINKAT, source.fd, "", Block(bytes(1)), 1,
                           errnos=(errno.EINVAL, errno.ENOENT, *absent)))
    if recursively:
        steps.append(native.attributes_step(source.fd, source.attributes, optional=optional))
    return steps


def _attach(view: View, here: Sequence[Source]) -> Iterator[Step]:
    """Build the root below a new current folder, except for /proc."""
    root = NewRoot()
    yield from stage_steps(_SIZE + 2 * MOST_BUNDLE if has_trust(view) else _SIZE)
    for source in here:
        yield from put_steps(source, root)
    made = (Text(f"{MADE}/{posixpath.basename(text.target)}", text.content) for text in view.proc)
    yield from write_steps((*view.texts, *made, _SEALED_TEXT), root)
    yield from link_steps(view, root)
    if view.proc or view.proc_live:
        for name, to in PROC_LINKS.items():
            yield from _link(f"{MADE}/{name}", to, root)
    yield from folder_steps(("/proc", "/dev/pts", *FOLDERS, *view.scratch.targets,
                             *((SCRATCH, STAGED) if view.root is not None else ())), root)


def has_sizes(view: View) -> bool:
    """Whether *view* has all files of `machine.SIZED`."""
    return set(SIZED) <= {text.target for text in (*view.texts, *view.proc)}


def written_by_daemon(view: View) -> tuple[str, ...]:
    """The files of *view* that the daemon rewrites for each job: those of `machine.SIZED`, and those of certificates."""
    return (*(SIZED if has_sizes(view) else ()), *((TRUST, TRUST_JAVA) if has_trust(view) else ()))


def _opened_for_writing(targets: Sequence[str], cells: Sequence[Cell]) -> Iterator[Step]:
    """
    Open files of the root for writing, by a detached copy of the root's mount: a mount on which a file is open for
    writing can't be made read-only.
    """
    if not cells:
        return
    tree = Cell("the root's mount")
    yield native.copy_step(tree, ".", alone=True)
    for cell, target in zip(cells, targets, strict=True):
        made = target.startswith("/proc/")
        path = f"{MADE}/{posixpath.basename(target)}" if made else target
        yield gives(cell, Call.OPENAT, tree, path.lstrip("/"), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0)
    yield returns(Call.CLOSE, tree)


def stage_steps(size: int = _SIZE) -> Iterator[Step]:
    """Mount a new root with room for *size* bytes, and make it the current folder."""
    root = Cell("root")
    yield native.private_step()
    yield from native.filesystem_steps(root, "tmpfs", {"size": str(size), "nr_inodes": "512", "mode": "0755"}, _ROOT)
    yield native.move_step(root, _STAGE)
    yield returns(Call.CLOSE, root)
    yield returns(Call.CHDIR, _STAGE)


def write_steps(texts: Iterable[Text], root: NewRoot | None = None) -> Iterator[Step]:
    for text in texts:
        fd = Cell(text.target)
        way, folder, name = _way(text.target, root)
        yield from way
        yield gives(fd, Call.OPENAT, folder, name, _TOUCH | os.O_EXCL, 0o555 if text.program else 0o444)
        if text.content:
            yield returns(Call.WRITE, fd, Block(text.content), len(text.content), value=len(text.content))
        yield returns(Call.CLOSE, fd)
        yield from _close(folder)


def link_steps(view: View, root: NewRoot | None = None) -> Iterator[Step]:
    """Make the links of *view* below the current folder."""
    for link in view.links:
        yield from _link(link.target, link.to, root)


def folder_steps(targets: Iterable[str], root: NewRoot | None = None) -> Iterator[Step]:
    for target in targets:
        way, folder, _ = _walk(target, target.lstrip("/").split("/"), root)
        yield from [*way, *_close(folder)]


def put_steps(source: Source, root: NewRoot | None = None) -> Iterator[Step]:
    """Attach *source* at its target below the current folder."""
    target, optional = source.bind.target, source.bind.optional
    if source.link:
        yield from _link(target, source.link, root)
        return
    if source.bind.file or source.bind.device:
        way, folder, name = _way(target, root)
        fd = Cell(target)
        way += [gives(fd, Call.OPENAT, folder, name, _TOUCH, 0o444), returns(Call.CLOSE, fd)]
    else:
        way, folder, name = _walk(target, target.lstrip("/").split("/"), root)
        if root is not None:
            root.cover(target)
    yield from [*way, native.move_step(source.fd, name, folder, optional=optional), *_close(folder)]


def _proc_of_nobody(bounds: Callable[[Cell | None], Sequence[Step]], shared: bool) -> Iterator[Step]:
    """
    Set *bounds* by the /proc of a pid namespace whose only process, the caller, exits afterwards, and mount it; or, if
    another one is *shared*, let it go with the old root: closed, it would cost a wait for the kernel's other processors.
    """
    proc, hints = Cell("proc"), {errno.EPERM: "no new /proc here: parts of the host's /proc are masked"}
    first = list(bounds(proc))
    if shared and not first:
        return
    for step in native.filesystem_steps(proc, "proc", {}, _PROC & ~MountAttr.RDONLY if first else _PROC):
        yield replace(step, hints=hints) if step.call is Call.FSMOUNT else step
    yield from first
    if first and not shared:
        yield native.attributes_step(proc, _PROC)
    yield native.move_step(proc, "/proc" if shared else "./proc")


def _shared_proc() -> list[Step]:
    return [native.bind_step(NOBODY, "./proc"), native.remount_step("./proc", _PROC)]


def close_steps(here: Sequence[Source]) -> Iterator[Step]:
    for source in here:
        if not source.link:
            yield returns(Call.CLOSE, source.fd, unless=(errno.EBADF,) if source.bind.optional else ())


def enter_steps() -> Iterator[Step]:
    """Make the current folder, which is a mount, the root; detach the old root; and make the new one read-only."""
    yield returns(Call.PIVOT_ROOT, ".", ".")
    yield native.unmount_step(".")
    # The binds were copied in the host's namespace. If mounts are shared there, as under systemd, later mounts of the
    # host would propagate here, without our attributes. Since Linux 5.12 the copies are made private at once.
    yield native.private_step()
    yield returns(Call.CHDIR, "/")
    yield native.remount_step("/", _READ_ONLY)


class NewRoot:
    """
    What the steps so far have made in a root that was empty. Nobody else writes there, so its folders, on which nothing
    was mounted, are no links, and can be named by their paths.
    """

    def __init__(self) -> None:
        self._folders, self._others = set[str](), set[str]()

    def take(self, path: str) -> None:
        """A file or a link is made at *path*."""
        self._others.add(path)

    def cover(self, target: str) -> None:
        """Something is mounted on the folder *target*."""
        path = target.strip("/")
        self._folders = {each for each in self._folders if not (each + "/").startswith(path + "/")}
        self._others.add(path)

    def reach(self, path: str) -> list[Step] | None:
        """The steps that make the folder *path*, where the one above it is there; None if it may be something else."""
        if path in self._others:
            return None
        if path in self._folders:
            return []
        self._folders.add(path)
        return [replace(returns(Call.MKDIRAT, AT_FDCWD, path, 0o755), hints=_HINTS)]


def _way(target: str, root: NewRoot | None) -> tuple[list[Step], Cell | int, str]:
    """The steps that make and open the folder of *target*, its descriptor or AT_FDCWD, and the name from there."""
    *folders, name = target.lstrip("/").split("/")
    if name in ("", ".", ".."):
        raise Bug(f"a mount on {target!r}")
    steps, at, path = _walk(target, folders, root)
    if root is not None and at == AT_FDCWD:
        root.take(posixpath.join(path, name))
    return steps, at, posixpath.join(path, name)


def _walk(target: str, folders: Sequence[str], root: NewRoot | None) -> tuple[list[Step], Cell | int, str]:
    """
    The steps that open each of *folders* in the one before it, from the current folder on, with the last one's descriptor
    and ""; or AT_FDCWD and its path if all are in the new *root*. Missing folders are made. Links aren't followed: a link in
    a bind could lead out of the new root, while the old one can still be reached.
    """
    steps: list[Step] = []
    at: Cell | int = AT_FDCWD
    path = ""
    for folder in folders:
        if folder in ("", ".", ".."):
            raise Bug(f"a mount on {target!r}")
        name = posixpath.join(path, folder)
        if root is not None and at == AT_FDCWD and (made := root.reach(name)) is not None:
            steps, path = [*steps, *made], name
            continue
        below = Cell(f"{folder!r} of {target!r}")
        steps += [
            replace(returns(Call.MKDIRAT, at, name, 0o755, unless=(errno.EEXIST,)), hints=_HINTS),
            replace(gives(below, Call.OPENAT, at, name, _WALK, 0), hints=_HINTS),
            *_close(at),
        ]
        at, path = below, ""
    return steps, at, path


def _close(fd: Cell | int) -> list[Step]:
    return [returns(Call.CLOSE, fd)] if isinstance(fd, Cell) else []


def _link(target: str, to: str, root: NewRoot | None) -> Iterator[Step]:
    way, folder, name = _way(target, root)
    yield from [*way, returns(Call.SYMLINKAT, to, folder, name), *_close(folder)]
