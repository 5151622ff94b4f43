"""
Privileges: no capability, no way to get one, nobody else's to look into.

Runs in:   the steps are made in the zygote; taken in the runner, some in the keeper.
Source:    capabilities(7), prctl(2)
"""

from __future__ import annotations

import signal
import struct

from leeward._native import privileges
from leeward._native.privileges import Prctl
from leeward._native.steps import Block, Call, Step, returns

#: struct __user_cap_header_struct: _LINUX_CAPABILITY_VERSION_3, this thread.
_HEADER = Block(struct.pack("Ii", 0x20080522, 0))
#: Two struct __user_cap_data_struct.
_NONE = Block(bytes(24))


def keeper_steps() -> list[Step]:
    """
    Empty the bounding set; no_new_privs; not dumpable. The keeper's own permitted set stays.

    Needs CAP_SETPCAP. Whatever it is, the runners inherit it.
    """
    return [
        *(_prctl(Prctl.CAPBSET_DROP, capability) for capability in range(privileges.capabilities_known())),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
        _prctl(Prctl.SET_DUMPABLE, 0),
    ]


def no_huge_pages_steps() -> list[Step]:
    """
    A page fault makes 4 KiB, not 2 MiB. Inherited.
    """
    return [_prctl(Prctl.SET_THP_DISABLE, 1)]


def steps() -> list[Step]:
    """
    Empty every set but the bounding one, which the keeper emptied; no_new_privs; not dumpable.
    """
    return [
        _prctl(Prctl.CAP_AMBIENT, Prctl.CAP_AMBIENT_CLEAR_ALL),
        returns(Call.CAPSET, _HEADER, _NONE),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
        _prctl(Prctl.SET_DUMPABLE, 0),
        # The keeper's thread ends: so does this. The init has it too; this is for the time before
        # the init's is set, and comes after the last change of credentials, which would clear it.
        _prctl(Prctl.SET_PDEATHSIG, signal.SIGKILL),
    ]


def proof() -> list[Step]:
    """
    What the kernel has to say of all that, and of the filter that came after it.
    """
    return [
        _prctl(Prctl.GET_NO_NEW_PRIVS, value=1),
        _prctl(Prctl.GET_DUMPABLE, value=0),
        _prctl(Prctl.GET_SECCOMP, value=2),  # a filter
    ]


def _prctl(option: int, argument: int = 0, *, value: int = 0) -> Step:
    return returns(Call.PRCTL, option, argument, 0, 0, 0, value=value)
