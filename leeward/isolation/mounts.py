"""
Mounts: what a sandbox sees of the host's files, and what it may write.

Runs in:   `sources` and `build` in the keeper, which makes the `steps`; the runner takes them.
Order:     sources are opened while the keeper still has its first host uid (the
           interpreter may lie in a home of mode 0700), everything else after.
Stands if: Landlock is wrong. What is not mounted has no name here.
Leaves:    descriptors that were open before; the runner closes those.
Source:    mount_namespaces(7), mount_setattr(2), mount(2), pivot_root(2), proc(5)

The template is the keeper's: a tmpfs root with read-only binds. A runner's mount
namespace is a copy of it, on which only two things are put: its own /proc and its
own tmpfs. Nothing is unmounted per job (that would wait for an RCU period).

A new /proc in a user namespace needs another one, fully visible, in the same mount
namespace. The template's is that of a pid namespace which is already dead: it
shows no process, and each runner's own lies on top of it.

Linux before 5.12 sets attributes of mounts that are attached only, and of one at a time: there the
keeper sets them as soon as a bind is in its place, and nobody else is in its namespace yet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone, clone
from leeward._native.steps import Call, Cell, Step, returns
from leeward.dataclass import dataclass
from leeward.errors import Bug, KernelRefusal, Unsupported
from leeward.isolation.landlock import SEALED
from leeward.spec.sandbox import Scratch, Text, View

#: Where the new root is mounted until it is the root. Any folder does; what it hides comes back.
_STAGE = "/tmp"

_READ_ONLY = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV
# A device on a read-only mount is written to all the same, but its times are the host's to change.
_DEVICE = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NOEXEC
_SCRATCH = MountAttr.NOSUID | MountAttr.NODEV
_NOTHING = MountAttr(0)

_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: World-readable, in every root, and in no Landlock rule: a runner that can open it isn't restricted.
_SEALED_TEXT = Text(SEALED, b"A job that can read this is not held by Landlock.\n")


@dataclass(slots=True)
class Source:
    """
    A detached copy of a part of the host, and where it goes.

    Attributes:
        link: what it says where it is a symbolic link; then nothing of it is mounted.
        unset: attributes that it gets when it is attached, on Linux before 5.12; else it has them.
    """

    fd: int
    target: str
    is_folder: bool
    link: str = ""
    unset: MountAttr = _NOTHING


def sources(view: View) -> list[Source]:
    """
    Take a detached copy of every bind of *view* and set its attributes.

    By descriptor, before any path of ours exists. A link is never followed: a bind that must be
    there can't be one, and an optional one is shown as a link, that leads where it leads inside.

    Raises:
        Unsupported: a bind that isn't optional is not there, or is a link.
        KernelRefusal: the kernel won't.
    """
    opened: list[Source] = []
    for bind in view.binds:
        try:
            fd = native.copy_tree(bind.source)
        except KernelRefusal as refusal:
            if bind.optional:
                continue
            raise Unsupported(f"bind {bind.source}", have=str(refusal), need="a readable file or folder") from refusal
        mode = os.fstat(fd).st_mode
        link = os.readlink("", dir_fd=fd) if stat.S_ISLNK(mode) else ""
        if link and not bind.optional:
            os.close(fd)
            raise Unsupported(f"bind {bind.source}", have=f"a link to {link}", need="a file or folder")
        attributes = _DEVICE if bind.device else _READ_ONLY
        try:
            native.set_attributes(fd, attributes)
            unset = _NOTHING
        except KernelRefusal as refusal:
            if errno.ENOSYS != refusal.errno:
                raise
            unset = attributes
        opened.append(Source(fd, bind.target, stat.S_ISDIR(mode), link, unset))
    return opened


def build(view: View, opened: list[Source]) -> None:
    """
    Make the template and pivot into it. Irreversible; closes *opened*.

    Needs a mount namespace of its own, all capabilities in its user namespace, and an
    id map: the files of the root are made by the caller's mapped uid.
    """
    native.make_private()
    root = native.filesystem("tmpfs", {"size": "1m", "nr_inodes": "512", "mode": "0755"}, _SCRATCH)
    native.move_mount(root, _STAGE)
    os.close(root)
    os.chdir(_STAGE)
    for source in opened:
        _attach(source)
    for text in (*view.texts, _SEALED_TEXT):
        with _at(text.target) as (folder, name):
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444,
                         dir_fd=folder)
            with open(fd, "wb") as file:
                file.write(text.content)
    for link in view.links:
        with _at(link.target) as (folder, name):
            os.symlink(link.to, name, dir_fd=folder)
    for target in ("/proc", *view.scratch.targets):
        with _at(target) as (folder, name):
            os.close(_step(folder, name, target))
    _proc_of_nobody()
    native.pivot_root(".", ".")
    native.unmount(".")
    # The binds were copied in the host's namespace. Where mounts are shared there, as under systemd, what the host
    # mounts later would come here too, with none of our attributes. Since 5.12 they were cut off when they were copied.
    native.make_private()
    os.chdir("/")
    native.remount("/", _READ_ONLY)


@contextlib.contextmanager
def _at(target: str) -> Iterator[tuple[int, str]]:
    """
    The folder that *target* is in, below the current one, as a descriptor; and target's name there.

    Folders that are missing are made. No link is followed on the way: one in a bind could lead
    out of the new root, while the old one is still ours.

    Raises:
        KernelRefusal: a link or a file is in the way.
    """
    *folders, name = target.lstrip("/").split("/")
    if not name or {"..", "."} & {*folders, name}:
        raise Bug(f"a mount on {target!r}")
    at = os.open(".", _WALK)
    try:
        for folder in folders:
            below = _step(at, folder, target)
            os.close(at)
            at = below
        yield at, name
    finally:
        os.close(at)


def _step(at: int, name: str, target: str) -> int:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=at)
        return os.open(name, _WALK, dir_fd=at)
    except OSError as error:
        raise KernelRefusal("openat", f"{name!r} of {target!r}", error.errno or 0,
                            "a link or a file is in the way") from error


def _attach(source: Source) -> None:
    with _at(source.target) as (folder, name):
        if source.link:
            os.symlink(source.link, name, dir_fd=folder)
        elif source.is_folder:
            point = _step(folder, name, source.target)
            native.move_mount(source.fd, "", point)
            os.close(point)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444, dir_fd=folder))
            native.move_mount(source.fd, name, folder)
    if source.unset and not source.link:
        _set_one_by_one(source.fd, source.unset)
    os.close(source.fd)


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


def _proc_of_nobody() -> None:
    pid, pidfd = clone(Clone.NEWPID)
    if 0 == pid:
        try:
            fd = native.filesystem("proc", {}, _SCRATCH | MountAttr.NOEXEC | MountAttr.RDONLY)
            native.move_mount(fd, "./proc")
        except KernelRefusal as refusal:
            os._exit(refusal.errno)
        os._exit(0)
    os.close(pidfd)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise KernelRefusal("fsmount", "proc", abs(status), "no new /proc here: parts of the host's /proc are masked"
                            if status == 1 else "")


def steps(scratch: Scratch, scratch_bytes: int) -> list[Step]:
    """
    Put the runner's own /proc and its own tmpfs on its copy of the template, and go to /workspace.

    Needs a mount and a pid namespace of its own and CAP_SYS_ADMIN. Linux 5.8 (subset=pid).
    """
    proc, tmpfs = Cell("proc"), Cell("tmpfs")
    options = {"size": str(scratch_bytes), "nr_inodes": str(scratch.inodes), "mode": "0755"}
    made = [
        *native.filesystem_steps(proc, "proc", {"subset": "pid"}, _SCRATCH | MountAttr.NOEXEC),
        native.move_step(proc, "/proc"),
        returns(Call.CLOSE, proc),
        *native.filesystem_steps(tmpfs, "tmpfs", options, _SCRATCH),
    ]
    for number, _ in enumerate(scratch.targets):
        made += [
            returns(Call.MKDIRAT, tmpfs, str(number), 0o700),
            # /tmp and /dev/shm are expected to be world-writable and sticky; there is one user here anyway.
            returns(Call.FCHMODAT, tmpfs, str(number), 0o755 if 0 == number else 0o1777),
        ]
    # Linux before 6.15 copies no part of a mount that isn't attached anywhere. So the whole is attached where its
    # first folder will cover it.
    first = scratch.targets[0]
    folders = [Cell(target) for target in scratch.targets]
    return [
        *made,
        native.move_step(tmpfs, first),
        *(native.copy_step(folder, f"{first}/{number}") for number, folder in enumerate(folders)),
        *(native.move_step(folder, target) for folder, target in zip(folders, scratch.targets, strict=True)),
        *(returns(Call.CLOSE, cell) for cell in (tmpfs, *folders)),
        returns(Call.CHDIR, first),
    ]
