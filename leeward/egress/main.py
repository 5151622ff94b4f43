"""
The broker's start: locks first, then the loop.

Runs in:   the broker, exec'd by the daemon on first need.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import socket
import traceback
from contextlib import suppress

from leeward.egress import lockdown
from leeward.egress.broker import receive, serve
from leeward.egress.dialling import Lookup, Resolver
from leeward.errors import PeerError
from leeward.wire.egress_control import Begin

#: Modules that are otherwise imported later, when Landlock forbids reading their files.
_WARM = (concurrent.futures.thread, traceback)


def main(control: int, lookup: Lookup | None = None) -> None:
    """
    Serve until the daemon closes the channel.

    Args:
        control: the channel's descriptor.
        lookup: used in place of the host's resolver.

    Raises:
        PeerError: the daemon's first message isn't Begin.
        KernelRefusal, OSError: a lock can't be set.
    """
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
        lockdown.enter(begin)
        runner.run(serve(channel, lookup or Resolver()))


async def _warm_up() -> None:
    """Let the C library load its resolver's modules, and Python its codecs for names."""
    with suppress(ImportError):  # without cryptography the daemon refuses every policy that needs this
        import leeward.egress.sealing  # noqa: F401
    async with asyncio.timeout(60):
        socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
