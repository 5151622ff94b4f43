"""
System calls for capabilities, prctl(2) options and host names, one function each.

Runs in:   zygote, keeper and runner.
Source:    capabilities(7), prctl(2), unshare(2), netdevice(7), close_range(2)
"""

from __future__ import annotations

import enum
import itertools

from leeward._native._shim import lib
from leeward.errors import KernelRefusal
from leeward.points import point


class Prctl(enum.IntEnum):
    """PR_*: options of prctl(2)."""

    CAPBSET_DROP = lib.PR_CAPBSET_DROP
    CAP_AMBIENT = lib.PR_CAP_AMBIENT
    CAP_AMBIENT_CLEAR_ALL = lib.PR_CAP_AMBIENT_CLEAR_ALL
    SET_DUMPABLE = lib.PR_SET_DUMPABLE
    GET_DUMPABLE = lib.PR_GET_DUMPABLE
    SET_NO_NEW_PRIVS = lib.PR_SET_NO_NEW_PRIVS
    GET_NO_NEW_PRIVS = lib.PR_GET_NO_NEW_PRIVS
    SET_PDEATHSIG = lib.PR_SET_PDEATHSIG
    GET_SECCOMP = lib.PR_GET_SECCOMP
    SET_THP_DISABLE = lib.PR_SET_THP_DISABLE


def _checked(result: int, call: str, arguments: str = "") -> int:
    if result < 0:
        raise KernelRefusal(call, arguments, -result)
    return result


def drop_capabilities() -> None:
    """Empty the effective, permitted, inheritable and ambient sets. Irreversible."""
    _checked(lib.lw_drop_capabilities(), "capset", "none")


def drop_bounding() -> None:
    """Empty the bounding set. Needs CAP_SETPCAP. Irreversible, inherited."""
    _checked(lib.lw_drop_bounding(), "prctl", "PR_CAPBSET_DROP")


def capabilities_known() -> int:
    """How many capabilities the kernel has. They are numbered from 0."""
    return next(number for number in itertools.count() if lib.lw_prctl(lib.PR_CAPBSET_READ, number, 0) < 0)


@point("privileges.capabilities-left")
def capabilities_left() -> int:
    """How many bits are set in the effective and permitted sets together."""
    return _checked(lib.lw_capabilities_left(), "capget")


def no_new_privs() -> None:
    """Set PR_SET_NO_NEW_PRIVS. Irreversible, inherited; Landlock and seccomp need it."""
    _checked(lib.lw_prctl(lib.PR_SET_NO_NEW_PRIVS, 1, 0), "prctl", "PR_SET_NO_NEW_PRIVS, 1")


def seccomp_mode() -> int:
    """The result of PR_GET_SECCOMP: 0 for no seccomp, 2 for a filter."""
    return _checked(lib.lw_prctl(lib.PR_GET_SECCOMP, 0, 0), "prctl", "PR_GET_SECCOMP")


def be_subreaper() -> None:
    """Set PR_SET_CHILD_SUBREAPER: orphaned descendants become children of this process."""
    _checked(lib.lw_prctl(lib.PR_SET_CHILD_SUBREAPER, 1, 0), "prctl", "PR_SET_CHILD_SUBREAPER, 1")


def set_hostname(name: str) -> None:
    """Set the host name of the uts namespace. Needs CAP_SYS_ADMIN over it."""
    _checked(lib.lw_sethostname(name.encode(), len(name.encode())), "sethostname", repr(name))
