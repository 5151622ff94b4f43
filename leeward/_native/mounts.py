"""
The descriptor-based mount calls.

Runs in:   keeper and runner; each call needs CAP_SYS_ADMIN over the mount namespace.
Source:    open_tree(2), move_mount(2), fsopen(2), pivot_root(2), Linux 5.2; mount_setattr(2), Linux 5.12;
           mount(2), for Linux before that
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping

from leeward._native._shim import ffi, lib
from leeward._native.steps import Call, Cell, Step, gives, returns
from leeward.errors import KernelRefusal

AT_FDCWD = -100
MNT_DETACH = 2


class MountAttr(enum.IntFlag):
    """
    MOUNT_ATTR_* of mount_setattr(2). The first four have the values of mount(2)'s MS_*, and of statvfs(3)'s ST_*.
    """

    RDONLY = lib.MOUNT_ATTR_RDONLY
    NOSUID = lib.MOUNT_ATTR_NOSUID
    NODEV = lib.MOUNT_ATTR_NODEV
    NOEXEC = lib.MOUNT_ATTR_NOEXEC
    NOSYMFOLLOW = lib.MOUNT_ATTR_NOSYMFOLLOW


def _checked(result: int, call: str, arguments: str) -> int:
    if result < 0:
        raise KernelRefusal(call, arguments, -result)
    return result


def copy_tree(path: str, dir: int = AT_FDCWD) -> int:
    """
    A detached copy of the mount tree at *path*; a close-on-exec descriptor of the caller's.

    A symbolic link as last component is refused: what it points to may not be ours to show.
    """
    flags = lib.OPEN_TREE_CLONE | lib.AT_RECURSIVE | lib.AT_SYMLINK_NOFOLLOW
    return _checked(lib.lw_open_tree(dir, os.fsencode(path), flags), "open_tree", f"{path!r}, OPEN_TREE_CLONE")


def move_mount(mount: int, to: str, dir: int = AT_FDCWD) -> None:
    """
    Attach the detached *mount* at *to*.
    """
    _checked(lib.lw_move_mount(mount, dir, os.fsencode(to)), "move_mount", f"{mount}, {to!r}")


def set_attributes(mount: int, set: MountAttr | int, clear: int = 0) -> None:
    """
    Set MOUNT_ATTR_* on *mount* and on all below it, and let no mount travel there from where it was copied.
    """
    _checked(lib.lw_mount_setattr(mount, lib.AT_RECURSIVE, set, clear), "mount_setattr", f"{mount}, {set!r}")


def remount(path: str, attributes: MountAttr | int) -> None:
    """
    Give the mount at *path*, which is attached, these of RDONLY, NOSUID, NODEV and NOEXEC, and no other of them.

    By mount(2). In a user namespace one that the mount came with can't be left out (EPERM).
    """
    _checked(lib.lw_mount_remount(os.fsencode(path), attributes), "mount", f"{path!r}, MS_REMOUNT, {attributes!r}")


def mount_id(fd: int) -> int:
    """
    The number of the mount that *fd* is in, as /proc/self/mountinfo has it. Linux 5.8.
    """
    found = ffi.new("uint64_t *")
    _checked(lib.lw_mount_id(fd, found), "statx", f"{fd}, STATX_MNT_ID")
    return int(found[0])


def make_private() -> None:
    """
    Cut all propagation of this mount namespace.
    """
    _checked(lib.lw_mount_private(), "mount", "'/', MS_PRIVATE")


def filesystem(type: str, options: Mapping[str, str], attributes: MountAttr | int) -> int:
    """
    A detached mount of a new filesystem; a close-on-exec descriptor of the caller's.
    """
    fs = _checked(lib.lw_fsopen(type.encode()), "fsopen", repr(type))
    try:
        for key, value in options.items():
            _checked(lib.lw_fsconfig_string(fs, key.encode(), value.encode()), "fsconfig", f"{type}, {key}={value}")
        _checked(lib.lw_fsconfig_string(fs, ffi.NULL, ffi.NULL), "fsconfig", f"{type}, FSCONFIG_CMD_CREATE")
        return _checked(lib.lw_fsmount(fs, attributes), "fsmount", type)
    finally:
        os.close(fs)


def filesystem_steps(mount: Cell, type: str, options: Mapping[str, str], attributes: MountAttr | int) -> list[Step]:
    """
    As `filesystem`, to be taken later; *mount* gets the descriptor.
    """
    fs = Cell(f"new {type}")
    return [
        gives(fs, Call.FSOPEN, type, lib.FSOPEN_CLOEXEC),
        *(returns(Call.FSCONFIG, fs, lib.FSCONFIG_SET_STRING, key, value, 0) for key, value in options.items()),
        returns(Call.FSCONFIG, fs, lib.FSCONFIG_CMD_CREATE, 0, 0, 0),
        gives(mount, Call.FSMOUNT, fs, lib.FSMOUNT_CLOEXEC, int(attributes)),
        returns(Call.CLOSE, fs),
    ]


def copy_step(mount: Cell, path: str) -> Step:
    """
    As `copy_tree`, to be taken later; *mount* gets the descriptor.
    """
    flags = lib.OPEN_TREE_CLONE | lib.OPEN_TREE_CLOEXEC | lib.AT_RECURSIVE | lib.AT_SYMLINK_NOFOLLOW
    return gives(mount, Call.OPEN_TREE, AT_FDCWD, path, flags)


def move_step(mount: Cell, to: str) -> Step:
    """
    As `move_mount`, to be taken later.
    """
    return returns(Call.MOVE_MOUNT, mount, "", AT_FDCWD, to, lib.MOVE_MOUNT_F_EMPTY_PATH)


def pivot_root(new_root: str, put_old: str) -> None:
    """
    Make *new_root* the root; the old one shows at *put_old*.
    """
    _checked(lib.lw_pivot_root(new_root.encode(), put_old.encode()), "pivot_root", f"{new_root!r}, {put_old!r}")


def unmount(path: str, flags: int = MNT_DETACH) -> None:
    """
    Detach the mount at *path*.
    """
    _checked(lib.lw_umount(os.fsencode(path), flags), "umount2", f"{path!r}, {flags}")
