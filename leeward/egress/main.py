"""
The broker's start: the rights that it doesn't need are dropped before it reads the first byte of a job; then the loop.

Holds:     an id of its own where the daemon is root's; no capability and no way to get one; by Landlock no file but
           those that the resolver and the interpreter read, and no port to listen on; by its filter no program, no Unix
           socket, and so no way to the daemon's own sockets.
Leaves:    connections to any address; the policy decides about those.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import os
import resource
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress

from leeward._native import landlock, privileges, seccomp
from leeward._native.privileges import Prctl
from leeward._native.steps import Call, Cell, Step, Table, returns
from leeward.egress.broker import receive, serve
from leeward.egress.dialling import Lookup, Resolver
from leeward.errors import PeerError
from leeward.wire.egress_control import Begin


def lock_down(begin: Begin) -> None:
    """Set all locks of the broker, which can't be taken back; KernelRefusal or OSError if one can't be set."""
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
    """Check that the locks hold: look at the process, and try what has to fail; else PermissionError."""
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


#: Modules that are otherwise imported later, when Landlock forbids reading their files.
_WARM = (concurrent.futures.thread, traceback)


def main(control: int, lookup: Lookup | None = None) -> None:
    """Serve until the daemon closes the channel *control*; PeerError if its first message isn't Begin."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=control)
    channel.set_inheritable(False)
    got = receive(channel)
    if got is None:
        return
    begin, fds = got
    if not isinstance(begin, Begin) or fds:
        raise PeerError(f"the daemon begins with {type(begin).__name__}")
    with asyncio.Runner() as runner:
        runner.run(_warm_up())
        lock_down(begin)
        runner.run(serve(channel, lookup or Resolver()))


async def _warm_up() -> None:
    """Let the C library load its resolver's modules, and Python its codecs for names."""
    with suppress(ImportError):  # without cryptography the daemon refuses every policy that needs this
        import leeward.egress.sealing  # noqa: F401
    async with asyncio.timeout(60):
        socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
