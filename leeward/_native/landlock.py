"""
Landlock's three system calls, and the kernel's names for what they restrict: landlock(7). The numbers are those of
<linux/landlock.h> of Linux 7.3; the build system's own header may be older.
"""

from __future__ import annotations

import enum
import errno
import os
import struct

from leeward._native.steps import AT_FDCWD as AT_FDCWD
from leeward._native.steps import Block, Call, Cell, Step, gives, result_of, returns
from leeward.errors import KernelRefusal

_PATH_BENEATH, _NET_PORT = 1, 2  # enum landlock_rule_type
_VERSION = 1 << 0  # LANDLOCK_CREATE_RULESET_VERSION


class FsAccess(enum.IntFlag):
    """LANDLOCK_ACCESS_FS_*: what may be done with files and folders."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15
    RESOLVE_UNIX = 1 << 16


class NetAccess(enum.IntFlag):
    """LANDLOCK_ACCESS_NET_*: what may be done with ports."""

    BIND_TCP = 1 << 0
    CONNECT_TCP = 1 << 1
    BIND_UDP = 1 << 2
    CONNECT_SEND_UDP = 1 << 3


class Scope(enum.IntFlag):
    """LANDLOCK_SCOPE_*: what may not cross the border of the domain."""

    ABSTRACT_UNIX_SOCKET = 1 << 0
    SIGNAL = 1 << 1


class RestrictSelf(enum.IntFlag):
    """LANDLOCK_RESTRICT_SELF_*: which denials are written to the host's audit log."""

    LOG_SAME_EXEC_OFF = 1 << 0
    LOG_SUBDOMAINS_OFF = 1 << 2


def abi() -> int:
    """The version of the kernel's Landlock ABI; 0 if it has no Landlock; KernelRefusal if the call fails otherwise."""
    version = result_of(Call.LANDLOCK_CREATE_RULESET, 0, 0, _VERSION, optional=True)
    if version < 0 and -version not in (errno.ENOSYS, errno.EOPNOTSUPP):
        raise KernelRefusal("landlock_create_ruleset", "flags=LANDLOCK_CREATE_RULESET_VERSION", -version)
    return max(version, 0)


def absence() -> int:
    """Why the kernel has no Landlock: EOPNOTSUPP if it isn't switched on, ENOSYS if it wasn't built in; 0 if it has it."""
    return max(-result_of(Call.LANDLOCK_CREATE_RULESET, 0, 0, _VERSION, optional=True), 0)


def ruleset_step(ruleset: Cell, fs: int, net: int, scoped: int) -> Step:
    """
    Make a ruleset, into *ruleset*, that denies the rights *fs*, *net* (Linux 6.7) and *scoped* (6.12) until rules allow
    parts of them. E2BIG or EINVAL if the kernel doesn't know a right.
    """
    return gives(ruleset, Call.LANDLOCK_CREATE_RULESET, Block(struct.pack("QQQ", fs, net, scoped)), 24, 0)


def path_steps(ruleset: Cell, path: str, access: int, *, optional: bool = False) -> list[Step]:
    """
    Allow *access* on *path* and, if it is a folder, beneath it. Links are followed. If *optional*, no rule is added
    where *path* doesn't exist, or is a file while *access* has rights on a folder's entries (EINVAL).
    """
    beneath = Cell(path)
    rule = Block(struct.pack("=Qi", access, -1), cells={8: beneath})  # struct landlock_path_beneath_attr
    no_rule, no_descriptor = ((errno.EBADF, errno.EINVAL), (errno.EBADF,)) if optional else ((), ())
    return [
        gives(beneath, Call.OPENAT, AT_FDCWD, path, os.O_PATH | os.O_CLOEXEC, 0, optional=optional),
        returns(Call.LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0, unless=no_rule),
        returns(Call.CLOSE, beneath, unless=no_descriptor),
    ]


def held_step(ruleset: Cell, descriptor: int, access: int, *, optional: bool) -> Step:
    """As `path_steps`, for a path that is open as the *descriptor*, which stays open."""
    rule = Block(struct.pack("=Qi", access, descriptor))
    return returns(Call.LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0,
                   unless=(errno.EBADF, errno.EINVAL) if optional else ())


def port_step(ruleset: Cell, port: int, access: int) -> Step:
    rule = Block(struct.pack("QQ", access, port))  # struct landlock_net_port_attr
    return returns(Call.LANDLOCK_ADD_RULE, ruleset, _NET_PORT, rule, 0)


def restrict_step(ruleset: Cell | int, flags: int) -> Step:
    """
    Enforce the ruleset on the thread that takes this step and on all threads and processes that it starts afterwards.
    Irreversible. *flags* from Linux 6.15.
    """
    hints = {errno.E2BIG: "16 rulesets are already stacked", errno.EPERM: "no_new_privs is not set"}
    return Step(Call.LANDLOCK_RESTRICT_SELF, (ruleset, flags), hints=hints)
