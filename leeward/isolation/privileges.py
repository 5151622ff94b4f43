"""Privileges: a job has no capability, can't get one, and isn't dumpable: others can't access it. capabilities(7)"""

from __future__ import annotations

import errno
import signal

from leeward._native.privileges import Prctl, bounding_steps, dropping_steps
from leeward._native.privileges import prctl_step as _prctl
from leeward._native.steps import Call, Step, fails, returns
from leeward.base.points import point


@point("privileges.keeper")
def keeper_steps() -> list[Step]:
    """
    Empty the bounding set; set no_new_privs; become not dumpable. The keeper's own permitted set stays. Needs
    CAP_SETPCAP. The runners inherit all of it.
    """
    return [
        *bounding_steps(),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
        _prctl(Prctl.SET_DUMPABLE, 0),
    ]


def powerless_steps(*, groups: bool) -> list[Step]:
    """
    The steps before the exec of a program that is to have no capability, no way to get one, and with *groups* no
    supplementary groups. The process stays dumpable: that flag belongs to its memory, which it may still share.
    """
    return [
        *([returns(Call.SETGROUPS, 0, 0)] if groups else []),
        *bounding_steps(),
        *dropping_steps(),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
    ]


def no_huge_pages_steps() -> list[Step]:
    """Switch off transparent huge pages, also for children: each page fault maps 4 KiB, not 2 MiB."""
    return [_prctl(Prctl.SET_THP_DISABLE, 1)]


def steps() -> list[Step]:
    """Empty all capability sets but the bounding set, which the keeper emptied; set no_new_privs; become not dumpable."""
    return [
        *dropping_steps(),
        _prctl(Prctl.SET_NO_NEW_PRIVS, 1),
        _prctl(Prctl.SET_DUMPABLE, 0),
        # This process dies with the keeper's thread. The init sets the same; this covers the time before the
        # init has. It comes after the last change of credentials, which would clear it.
        _prctl(Prctl.SET_PDEATHSIG, signal.SIGKILL),
    ]


def user_proof(uid: int) -> list[Step]:
    """Ask the kernel who this process is, which nobody without a capability changes; before a filter that asks others."""
    return [returns(Call.GETUID, value=uid)]


def powerless_proof() -> list[Step]:
    """Try a call that needs a capability, before the filter: for processes that run no code of leeward's afterwards."""
    return [fails(Call.SETHOSTNAME, "", 0, errnos=(errno.EPERM,))]


def proof() -> list[Step]:
    """Ask the kernel whether these locks and the filter, which is set after them, are in force."""
    return [
        _prctl(Prctl.GET_NO_NEW_PRIVS, value=1),
        _prctl(Prctl.GET_DUMPABLE, value=0),
        _prctl(Prctl.GET_SECCOMP, value=2),  # a filter
    ]
