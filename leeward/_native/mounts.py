"""
The mount calls that work on descriptors, and mount(2). Each needs CAP_SYS_ADMIN over the mount namespace.

Source:    open_tree(2), move_mount(2), fsopen(2), pivot_root(2), Linux 5.2; mount_setattr(2), Linux 5.12
"""

from __future__ import annotations

import enum
import errno
import os
import re
import struct
from collections.abc import Mapping

from leeward._native._shim import lib
from leeward._native.steps import AT_FDCWD as AT_FDCWD
from leeward._native.steps import Block, Call, Cell, Step, Table, gives, result_of, returns
from leeward.base.dataclass import dataclass
from leeward.errors import KernelRefusal

MNT_DETACH = 2
_STATX_MNT_ID, _STATX_BTIME = 0x1000, 0x800

#: By whether a mount is optional: the errnos that a step on it may return when there is no mount.
_NO_MOUNT = {False: (), True: (errno.EBADF,)}


class MountAttr(enum.IntFlag):
    """MOUNT_ATTR_* of mount_setattr(2). They have the values of mount(2)'s MS_*, and of statvfs(3)'s ST_*."""

    RDONLY = lib.MOUNT_ATTR_RDONLY
    NOSUID = lib.MOUNT_ATTR_NOSUID
    NODEV = lib.MOUNT_ATTR_NODEV
    NOEXEC = lib.MOUNT_ATTR_NOEXEC


def move_mount(mount: int, to: str) -> None:
    Table([move_step(mount, to)]).run()


def move_onto(mount: int, place: int) -> None:
    """Attach the detached *mount* on the file or folder of the descriptor *place*."""
    Table([move_step(mount, "", place)]).run()


def copy(path: str | int, *, recursive: bool = True) -> int:
    """`copy_step` at once, also of an open descriptor. Returns a close-on-exec descriptor, which the caller owns."""
    at, name = (path, "") if isinstance(path, int) else (AT_FDCWD, path)
    return result_of(Call.OPEN_TREE, at, name, _copying(recursive) | (0 if name else lib.AT_EMPTY_PATH))


def set_attributes(mount: int, attributes: MountAttr, ids: int = -1) -> None:
    """
    `attributes_step` at once. *ids*: a descriptor of a user namespace, by whose map the owners of files are shown; or
    -1.
    """
    Table([attributes_step(mount, attributes, ids=ids)]).run()


def set_one_by_one(fd: int, attributes: MountAttr) -> None:
    """
    Add *attributes* to those of the attached mount *fd* and of all mounts below it, which a user namespace can't
    remove. KernelRefusal if a mount can't be reached, because another covers it.
    """
    todo = {mount_id(fd): f"/proc/self/fd/{fd}"}
    rows = mounted()
    while todo:
        number, path = todo.popitem()
        todo |= {row.number: row.point for row in rows if row.parent == number}
        at = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if path.startswith("/proc/self/fd/") else os.O_NOFOLLOW))
        try:
            if mount_id(at) != number:
                raise KernelRefusal("mount", f"{path!r}, MS_REMOUNT", errno.EBUSY, "another mount covers it")
            has = MountAttr(os.fstatvfs(at).f_flag & sum(MountAttr))
            remount(f"/proc/self/fd/{at}", has | attributes)
        finally:
            os.close(at)


def attach(mount: int, to: str | int, attributes: MountAttr) -> None:
    """
    Attach the detached *mount* at *to*, a path or a descriptor, and add *attributes* to its own. Before Linux 5.12 it
    has them once it's attached: so no process of a client may be there yet, or it has to have them before.
    """
    early = sets_attributes()
    if early:
        set_attributes(mount, attributes)
    if isinstance(to, int):
        move_onto(mount, to)
    else:
        move_mount(mount, to)
    if not early:
        Table([private_step(f"/proc/self/fd/{mount}")]).run()
        set_one_by_one(mount, attributes)


def sets_attributes() -> bool:
    """Whether this kernel has mount_setattr(2)."""
    return Table([Step(Call.MOUNT_SETATTR, (-1, "", 0, 0, 0), (-errno.ENOSYS,))]).take()[0] == 0


def remount(path: str, attributes: MountAttr | int) -> None:
    Table([remount_step(path, attributes)]).run()


def mount_id(fd: int) -> int:
    """The id, as in /proc/self/mountinfo, of the mount that *fd* is in. Linux 5.8."""
    about = _statx(fd, _STATX_MNT_ID)
    if about is None:
        raise KernelRefusal("statx", f"{fd}, STATX_MNT_ID", errno.ENOSYS)
    return int.from_bytes(about[0x90:0x98], "little")


def made_at(fd: int) -> bytes:
    """When the file of *fd* was made, as the kernel has it, to be compared; empty if its file system doesn't keep that."""
    return (_statx(fd, _STATX_BTIME) or b"")[0x50:0x5c]


def _statx(fd: int, wanted: int) -> bytes | None:
    """The struct statx of *fd*; None if it doesn't have what is *wanted*."""
    found = Block(bytes(256))
    table = Table([returns(Call.STATX, fd, "", lib.AT_EMPTY_PATH | lib.AT_NO_AUTOMOUNT, wanted, found)])
    table.run()
    about = table.content(found)
    return about if int.from_bytes(about[:4], "little") & wanted else None


@dataclass(frozen=True, slots=True)
class MountRow:
    """
    A mount in mountinfo: *root* of its file system lies at *point*, both as os.fsdecode has them; the options of the mount,
    and of the file system.
    """

    number: int
    parent: int
    root: str
    point: str
    options: tuple[str, ...]
    kind: str
    own: tuple[str, ...]


def mounted(text: str | None = None) -> list[MountRow]:
    """
    The mounts of this namespace, or those in *text*, of a mountinfo. Rows end with a newline alone: a user who can mount, and
    a sandbox that moves a folder, choose the bytes of a mount point, of which the kernel escapes those by which it separates.
    """
    if text is None:
        with open("/proc/self/mountinfo", "rb") as file:
            text = os.fsdecode(file.read())
    found = []
    for row in filter(None, text.split("\n")):
        first, _, second = row.partition(" - ")
        number, parent, _, root, point, options, *_ = first.split(" ")
        kind, _, own = second.split(" ", 2)
        found.append(MountRow(int(number), int(parent), _unescaped(root), _unescaped(point), tuple(options.split(",")), kind,
                              tuple(own.split(","))))
    return found


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)


def filesystem(type: str, options: Mapping[str, str], attributes: MountAttr | int, namespaces: int = 0) -> int:
    """
    `filesystem_steps` at once, or by a child in new *namespaces* (CLONE_NEW*), which ends. Returns a close-on-exec
    descriptor of the mount, which the caller owns.
    """
    made = Cell(type)
    opening, *rest, _ = filesystem_steps(made, type, options, attributes)
    table = Table([opening, *rest])
    try:
        if namespaces:
            table.run_aside(0, len(table.steps), namespaces=namespaces, descriptors=True)
        else:
            table.run()
        return table.value(made)
    finally:
        if opening.into is not None and (fs := table.value(opening.into)) > 0:  # 0: it wasn't opened
            os.close(fs)


def filesystem_steps(mount: Cell, type: str, options: Mapping[str, str], attributes: MountAttr | int) -> list[Step]:
    """Make a new filesystem and a detached mount of it for the cell *mount*. An option without a value is set as a flag."""
    fs = Cell(f"new {type}")
    return [
        gives(fs, Call.FSOPEN, type, lib.FSOPEN_CLOEXEC),
        *(returns(Call.FSCONFIG, fs, lib.FSCONFIG_SET_STRING, key, value, 0) if value
          else returns(Call.FSCONFIG, fs, lib.FSCONFIG_SET_FLAG, key, 0, 0) for key, value in options.items()),
        returns(Call.FSCONFIG, fs, lib.FSCONFIG_CMD_CREATE, 0, 0, 0),
        gives(mount, Call.FSMOUNT, fs, lib.FSMOUNT_CLOEXEC, int(attributes)),
        returns(Call.CLOSE, fs),
    ]


def mount_step(type: str, target: str, options: Mapping[str, str], attributes: MountAttr | int) -> Step:
    """Make a new filesystem and mount it at *target*, a path whose links are followed. As for `filesystem_steps`."""
    return returns(Call.MOUNT, "none", target, type, int(attributes), _text(options))


def reconfigure_step(target: str, options: Mapping[str, str], attributes: MountAttr | int) -> Step:
    """Change *options* of the filesystem that is mounted at *target*. Its mount gets *attributes*, and no others."""
    return returns(Call.MOUNT, 0, target, 0, lib.MS_REMOUNT | int(attributes), _text(options))


def bind_step(source: str, target: str) -> Step:
    """Mount a copy of the mount tree at *source* at *target*, with the attributes that it has. Links are followed."""
    return returns(Call.MOUNT, source, target, 0, lib.MS_BIND | lib.MS_REC, 0)


def _text(options: Mapping[str, str]) -> str | int:
    """*options* as mount(2)'s last argument; 0, a null pointer, if there are none."""
    return ",".join(f"{key}={value}" if value else key for key, value in options.items()) or 0


def copy_step(mount: Cell, path: str, *, optional: bool = False, alone: bool = False) -> Step:
    """
    Make a detached copy of the mount tree at *path*, or of the one mount if *alone*; *mount* gets its descriptor, or
    the negative errno if the kernel may refuse (*optional*). A symbolic link as the last component isn't followed: the
    sandbox may not be allowed to see its target.
    """
    return gives(mount, Call.OPEN_TREE, AT_FDCWD, path, _copying(not alone), optional=optional)


def _copying(recursive: bool) -> int:
    flags = lib.OPEN_TREE_CLONE | lib.OPEN_TREE_CLOEXEC | lib.AT_SYMLINK_NOFOLLOW
    return int(flags | (lib.AT_RECURSIVE if recursive else 0))


def move_step(mount: Cell | int, to: str, dir: Cell | int = AT_FDCWD, *, optional: bool = False) -> Step:
    """
    Attach the detached *mount* at *to* below *dir*, or on *dir* itself if *to* is empty. If *optional*, it is no error
    if *mount* holds no descriptor.
    """
    flags = lib.MOVE_MOUNT_F_EMPTY_PATH | (0 if to else lib.MOVE_MOUNT_T_EMPTY_PATH)
    return returns(Call.MOVE_MOUNT, mount, "", dir, to, flags, unless=_NO_MOUNT[optional])


def attributes_step(mount: Cell | int, set: MountAttr, *, optional: bool = False, ids: int = -1) -> Step:
    """
    Set *set* on the detached *mount* and all mounts below it, and make them private, so that no later mount propagates
    to them from where they were copied. Linux 5.12.
    """
    idmap = lib.MOUNT_ATTR_IDMAP if ids >= 0 else 0
    how = Block(struct.pack("QQQQ", set | idmap, 0, lib.MS_PRIVATE, max(0, ids)))  # struct mount_attr
    return returns(Call.MOUNT_SETATTR, mount, "", lib.AT_RECURSIVE | lib.AT_EMPTY_PATH, how, len(how.data),
                   unless=_NO_MOUNT[optional])


def private_step(path: str = "/") -> Step:
    """Make the mount at *path* and all below it private, so that none propagates from or to others."""
    return returns(Call.MOUNT, 0, path, 0, lib.MS_REC | lib.MS_PRIVATE, 0)


def remount_step(path: str, attributes: MountAttr | int) -> Step:
    """
    Set RDONLY, NOSUID, NODEV and NOEXEC of the attached mount at *path*: those in *attributes* on, the others off. In a
    user namespace, an attribute that the mount came with can't be removed (EPERM).
    """
    return returns(Call.MOUNT, 0, path, 0, lib.MS_REMOUNT | lib.MS_BIND | int(attributes), 0)


def unmount_step(path: str) -> Step:
    return returns(Call.UMOUNT2, path, MNT_DETACH)
