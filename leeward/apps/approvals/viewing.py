"""
The process of `leeward ui`: the page about the daemon, at a port of 127.0.0.1, for the user who has its link.

Runs in:   a process of its own, as its user; a client of the daemon that changes nothing and starts none.
Ends:      by SIGTERM, SIGINT or SIGHUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

from leeward.apps.approvals.daemon_view import DaemonView
from leeward.apps.approvals.web.application import viewing
from leeward.apps.approvals.web.gate import PageAccess
from leeward.apps.approvals.web.listening import BoundedConnection, bind_loopback, server_of
from leeward.errors import LeewardError

#: Seconds between two looks, so that the charts have a past when the page is opened again.
EACH_S = 2.0


def view(socket: str | None, port: int, ready: Callable[[str], None]) -> int:
    """
    Serve until a signal; returns the exit status. *ready* gets a link that logs a browser in, once. Port 0 is a free
    one. Busy if the port is taken.
    """
    asyncio.run(_view(DaemonView(socket), port, ready))
    return 0


async def _view(daemon: DaemonView, port: int, ready: Callable[[str], None]) -> None:
    access, over = PageAccess(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    server, bound = server_of(viewing(daemon, access), BoundedConnection), bind_loopback(port)
    task = asyncio.ensure_future(server.serve([bound]))
    try:
        ready(f"http://127.0.0.1:{bound.getsockname()[1]}/login?token={access.login_token()}")
        while not over.is_set():
            with contextlib.suppress(LeewardError):
                await asyncio.to_thread(daemon.look)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), EACH_S)
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
