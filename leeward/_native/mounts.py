"""
The mount calls that work on descriptors.

Runs in:   keeper and runner; each call needs CAP_SYS_ADMIN over the mount namespace.
Source:    open_tree(2), move_mount(2), fsopen(2), pivot_root(2), Linux 5.2; mount_setattr(2), Linux 5.12;
           mount(2), for Linux before that
"""

from __future__ import annotations

import enum
import errno
import os
import re
import struct
from collections.abc import Mapping

from leeward._native._shim import ffi, lib
from leeward._native.steps import AT_FDCWD as AT_FDCWD
from leeward._native.steps import Block, Call, Cell, Step, Table, gives, returns
from leeward.errors import KernelRefusal

MNT_DETACH = 2

#: By whether a mount is optional: the errnos that a step on it may return when there is no mount.
_NO_MOUNT = {False: (), True: (errno.EBADF,)}


class MountAttr(enum.IntFlag):
    """MOUNT_ATTR_* of mount_setattr(2). They have the values of mount(2)'s MS_*, and of statvfs(3)'s ST_*."""

    RDONLY = lib.MOUNT_ATTR_RDONLY
    NOSUID = lib.MOUNT_ATTR_NOSUID
    NODEV = lib.MOUNT_ATTR_NODEV
    NOEXEC = lib.MOUNT_ATTR_NOEXEC


def _checked(result: int, call: str, arguments: str) -> int:
    if result < 0:
        raise KernelRefusal(call, arguments, -result)
    return result


def move_mount(mount: int, to: str) -> None:
    """Attach the detached *mount* at *to*."""
    _checked(lib.lw_move_mount(mount, os.fsencode(to)), "move_mount", f"{mount}, {to!r}")


def move_onto(mount: int, place: int) -> None:
    """Attach the detached *mount* on the file or folder of the descriptor *place*."""
    flags = lib.MOVE_MOUNT_F_EMPTY_PATH | lib.MOVE_MOUNT_T_EMPTY_PATH
    Table([returns(Call.MOVE_MOUNT, mount, "", place, "", flags)]).run()


def copy(path: str | int, *, recursive: bool = True) -> int:
    """
    Make a detached copy of the mount tree at *path*, a path or an open descriptor. Returns a close-on-exec descriptor,
    which the caller owns. A link as the last component isn't followed.
    """
    cell = Cell("tree")
    flags = (lib.OPEN_TREE_CLONE | lib.OPEN_TREE_CLOEXEC | lib.AT_SYMLINK_NOFOLLOW
             | (lib.AT_RECURSIVE if recursive else 0))
    at, name = (path, "") if isinstance(path, int) else (AT_FDCWD, path)
    table = Table([gives(cell, Call.OPEN_TREE, at, name, flags | (0 if name else lib.AT_EMPTY_PATH))])
    table.run()
    return table.value(cell)


def set_attributes(mount: int, attributes: MountAttr, ids: int = -1) -> None:
    """
    Set *attributes* on the detached *mount* and all mounts below it, and make them private. Linux 5.12.

    Args:
        ids: a descriptor of a user namespace, by whose map the owners of files are shown; -1 for none.
    """
    idmap = lib.MOUNT_ATTR_IDMAP if ids >= 0 else 0
    how = Block(struct.pack("QQQQ", attributes | idmap, 0, lib.MS_PRIVATE, max(0, ids)))  # struct mount_attr
    Table([returns(Call.MOUNT_SETATTR, mount, "", lib.AT_RECURSIVE | lib.AT_EMPTY_PATH, how, len(how.data))]).run()


def sets_attributes() -> bool:
    """Whether the kernel has mount_setattr(2)."""
    return Table([Step(Call.MOUNT_SETATTR, (-1, "", 0, 0, 0), (-errno.ENOSYS,))]).take()[0] == 0


def remount(path: str, attributes: MountAttr | int) -> None:
    """
    Set the attributes RDONLY, NOSUID, NODEV and NOEXEC of the attached mount at *path*: those in *attributes* on, the
    others off.

    By mount(2). In a user namespace, an attribute that the mount came with can't be removed (EPERM).
    """
    _checked(lib.lw_mount_remount(os.fsencode(path), attributes), "mount", f"{path!r}, MS_REMOUNT, {attributes!r}")


def mount_id(fd: int) -> int:
    """The id, as in /proc/self/mountinfo, of the mount that *fd* is in. Linux 5.8."""
    found = ffi.new("uint64_t *")
    _checked(lib.lw_mount_id(fd, found), "statx", f"{fd}, STATX_MNT_ID")
    return int(found[0])


def unescaped(point: str) -> str:
    """The path of a mount point that /proc/self/mountinfo shows as *point*, with escapes."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)


def filesystem(type: str, options: Mapping[str, str], attributes: MountAttr | int) -> int:
    """Make a new filesystem and a detached mount of it. Returns a close-on-exec descriptor, which the caller owns."""
    fs = _checked(lib.lw_fsopen(type.encode()), "fsopen", repr(type))
    try:
        for key, value in options.items():
            given = value.encode() if value else ffi.NULL
            _checked(lib.lw_fsconfig_string(fs, key.encode(), given), "fsconfig", f"{type}, {key}={value}")
        _checked(lib.lw_fsconfig_string(fs, ffi.NULL, ffi.NULL), "fsconfig", f"{type}, FSCONFIG_CMD_CREATE")
        return _checked(lib.lw_fsmount(fs, attributes), "fsmount", type)
    finally:
        os.close(fs)


def filesystem_steps(mount: Cell, type: str, options: Mapping[str, str], attributes: MountAttr | int) -> list[Step]:
    """`filesystem` as steps; *mount* gets the descriptor. An option without a value is set as a flag."""
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
    """
    Make a new filesystem and mount it at *target*, a path whose links are followed: by mount(2). An option without a
    value is set as a flag.
    """
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
    Make a detached copy of the mount tree at *path*; *mount* gets its descriptor.

    A symbolic link as the last component isn't followed: the sandbox may not be allowed to see its target.

    Args:
        optional: the kernel may refuse; then *mount* holds the negative errno.
        alone: copy the mount without those below it.
    """
    flags = lib.OPEN_TREE_CLONE | lib.OPEN_TREE_CLOEXEC | lib.AT_SYMLINK_NOFOLLOW | (0 if alone else lib.AT_RECURSIVE)
    return gives(mount, Call.OPEN_TREE, AT_FDCWD, path, flags, optional=optional)


def move_step(mount: Cell, to: str, dir: Cell | int = AT_FDCWD, *, optional: bool = False) -> Step:
    """
    Attach the detached *mount* at *to* below *dir*, or on *dir* itself if *to* is empty.

    Args:
        optional: it is no error if *mount* holds no descriptor.
    """
    flags = lib.MOVE_MOUNT_F_EMPTY_PATH | (0 if to else lib.MOVE_MOUNT_T_EMPTY_PATH)
    return returns(Call.MOVE_MOUNT, mount, "", dir, to, flags, unless=_NO_MOUNT[optional])


def attributes_step(mount: Cell, set: MountAttr, *, optional: bool = False) -> Step:
    """
    Set *set* on the detached *mount* and all mounts below it, and make them private, so that no later mount propagates
    to them from where they were copied. Linux 5.12.
    """
    how = Block(struct.pack("QQQQ", set, 0, lib.MS_PRIVATE, 0))  # struct mount_attr
    return returns(Call.MOUNT_SETATTR, mount, "", lib.AT_RECURSIVE | lib.AT_EMPTY_PATH, how, len(how.data),
                   unless=_NO_MOUNT[optional])


def private_step() -> Step:
    """Make all mounts of this namespace private, so that none propagates from or to others."""
    return returns(Call.MOUNT, 0, "/", 0, lib.MS_REC | lib.MS_PRIVATE, 0)


def remount_step(path: str, attributes: MountAttr) -> Step:
    """`remount` as a step."""
    return returns(Call.MOUNT, 0, path, 0, lib.MS_REMOUNT | lib.MS_BIND | int(attributes), 0)


def unmount_step(path: str) -> Step:
    """Detach the mount at *path*, and all below it."""
    return returns(Call.UMOUNT2, path, MNT_DETACH)
