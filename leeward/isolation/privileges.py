"""
Privileges: no capability, no way to get one, and no access by other processes (not dumpable).

Runs in:   the steps are made in the zygote; taken in the runner, some in the keeper.
Source:    capabilities(7), prctl(2)
"""

from __future__ import annotations

import errno
import signal
import struct

from leeward._native import privileges
from leeward._native.privileges import Prctl
from leeward._native.steps import Block, Call, Step, fails, returns
from leeward.points import point

#: struct __user_cap_header_struct: _LINUX_CAPABILITY_VERSION_3, this thread.
_HEADER = Block(struct.pack("Ii", 0x20080522, 0))
#: Two struct __user_cap_data_struct.
_NONE = Block(bytes(24))


@point("privileges.keeper")
def keeper_steps() -> list[Step]:
    """
    Empty the bounding set; set no_new_privs; become not dumpable. The keeper's own permitted set stays.

    Needs CAP_SETPCAP. The runners inherit all of it.
    """
    return [
        *(_prctl(Prctl.CAPBSET_DROP, capability) for capability in range(privileges.capabilities_known())),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
        _prctl(Prctl.SET_DUMPABLE, 0),
    ]


def powerless_steps(*, groups: bool) -> list[Step]:
    """
    For a program that is about to start: no capability in any set, no way to get one, and, with *groups*, none of the
    supplementary groups. Needs CAP_SETPCAP, and CAP_SETGID for the groups.

    It stays dumpable, because that flag belongs to its memory, which it may still share.
    """
    return [
        *([returns(Call.SETGROUPS, 0, 0)] if groups else []),
        *(_prctl(Prctl.CAPBSET_DROP, capability) for capability in range(privileges.capabilities_known())),
        _prctl(Prctl.CAP_AMBIENT, Prctl.CAP_AMBIENT_CLEAR_ALL),
        returns(Call.CAPSET, _HEADER, _NONE),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
    ]


def no_huge_pages_steps() -> list[Step]:
    """
    Switch off transparent huge pages: each page fault maps 4 KiB, not 2 MiB. Inherited.
    """
    return [_prctl(Prctl.SET_THP_DISABLE, 1)]


def steps() -> list[Step]:
    """
    Empty all capability sets but the bounding set, which the keeper emptied; set no_new_privs; become not dumpable.
    """
    return [
        _prctl(Prctl.CAP_AMBIENT, Prctl.CAP_AMBIENT_CLEAR_ALL),
        returns(Call.CAPSET, _HEADER, _NONE),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
        _prctl(Prctl.SET_DUMPABLE, 0),
        # This process dies with the keeper's thread. The init sets the same; this covers the time before the
        # init has. It comes after the last change of credentials, which would clear it.
        _prctl(Prctl.SET_PDEATHSIG, signal.SIGKILL),
    ]


def powerless_proof() -> list[Step]:
    """
    Try a call that needs a capability, after `steps` and before the filter, for processes without later code of ours.
    """
    return [fails(Call.SETHOSTNAME, "", 0, errnos=(errno.EPERM,))]


def proof() -> list[Step]:
    """
    Ask the kernel whether all of these locks are set, and the filter, which was set after them.
    """
    return [
        _prctl(Prctl.GET_NO_NEW_PRIVS, value=1),
        _prctl(Prctl.GET_DUMPABLE, value=0),
        _prctl(Prctl.GET_SECCOMP, value=2),  # a filter
    ]


def _prctl(option: int, argument: int = 0, *, value: int = 0) -> Step:
    return returns(Call.PRCTL, option, argument, 0, 0, 0, value=value)
