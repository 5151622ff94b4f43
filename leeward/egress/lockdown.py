"""
The broker drops the rights that it doesn't need, before it reads the first byte of a job.

Runs in:   the broker, once.
Holds:     an id of its own where the daemon is root's; no capability and no way to get one; by Landlock no file but
           those that the resolver and the interpreter read, and no port to listen on; by its filter no program, no Unix
           socket, and so no way to the daemon's own sockets.
Leaves:    connections to any address; the policy decides about those.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable

from leeward._native import landlock, privileges, seccomp
from leeward._native.privileges import Prctl
from leeward._native.steps import Call, Cell, Step, Table, returns
from leeward.wire.egress_control import Begin


def enter(begin: Begin) -> None:
    """
    Set all locks of the broker. They can't be taken back.

    Raises:
        KernelRefusal, OSError: a lock can't be set.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # the broker ends with the daemon, not by a terminal's signals
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if begin.ids:
        os.setgroups([])
        Table(privileges.bounding_steps()).run()
        uid, gid = begin.ids
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    Table([*privileges.dropping_steps(), privileges.prctl_step(Prctl.SET_NO_NEW_PRIVS, 1),
           returns(Call.PRCTL, Prctl.SET_DUMPABLE, 0, 0, 0, 0), *_landlock(begin),
           seccomp.install_step(begin.filter)]).run()
    prove(begin)


def _landlock(begin: Begin) -> list[Step]:
    if not begin.landlock:
        return []
    fs, net, scoped, flags, reads = begin.landlock
    ruleset = Cell("ruleset")
    rules = [step for path in begin.readable for step in landlock.path_steps(ruleset, path, reads, optional=True)]
    return [landlock.ruleset_step(ruleset, fs, net, scoped), *rules, landlock.restrict_step(ruleset, flags),
            returns(Call.CLOSE, ruleset)]


def prove(begin: Begin) -> None:
    """
    Check that the locks hold: look at the process, and try operations that have to fail.

    Raises:
        PermissionError: a lock isn't set, or one of these operations succeeded.
    """
    if privileges.capabilities_left() or privileges.seccomp_mode() != 2:
        raise PermissionError("the broker has capabilities, or no filter")
    if _works(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()):
        raise PermissionError("the broker can make Unix sockets")
    if begin.landlock and _works(lambda: os.close(os.open("/proc/self/environ", os.O_RDONLY | os.O_CLOEXEC))):
        raise PermissionError("Landlock doesn't hold the broker")


def _works(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
