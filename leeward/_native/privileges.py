"""Capabilities and options of prctl(2). capabilities(7)"""

from __future__ import annotations

import enum
import itertools
import struct

from leeward._native._shim import lib
from leeward._native.steps import Block, Call, Step, returns
from leeward.base.points import point
from leeward.errors import KernelRefusal

#: struct __user_cap_header_struct: _LINUX_CAPABILITY_VERSION_3, this thread; and two struct __user_cap_data_struct.
_HEADER, _NONE = Block(struct.pack("Ii", 0x20080522, 0)), Block(bytes(24))


class Prctl(enum.IntEnum):
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


def prctl_step(option: int, argument: int = 0, *, value: int = 0) -> Step:
    return returns(Call.PRCTL, option, argument, 0, 0, 0, value=value)


def dropping_steps() -> list[Step]:
    """Empty the effective, permitted, inheritable and ambient sets. Irreversible."""
    return [prctl_step(Prctl.CAP_AMBIENT, Prctl.CAP_AMBIENT_CLEAR_ALL), returns(Call.CAPSET, _HEADER, _NONE)]


def bounding_steps() -> list[Step]:
    """Empty the bounding set. Needs CAP_SETPCAP. Irreversible, inherited."""
    return [prctl_step(Prctl.CAPBSET_DROP, capability) for capability in range(capabilities_known())]


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
