"""
The process of `leeward approvals serve`, from its start to its end.

Runs in:   a process of its own, as the operator's user; a client of the daemon.
Ends:      by SIGTERM, SIGINT, SIGHUP or the end of its time: pending requests are denied, viewers get `shutdown`,
           sandboxes end, and the exit status is 0. After a SIGKILL the next start carries out what was approved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from leeward.apps.approvals.carrying.apply import OpenProjects
from leeward.apps.approvals.durations import duration_text
from leeward.apps.approvals.notifying import Notifier
from leeward.apps.approvals.operator_file import operator_policy
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.service import ApprovalService
from leeward.apps.approvals.service_paths import own_folder, state_folder
from leeward.apps.approvals.web.application import application
from leeward.apps.approvals.web.gate import Operator
from leeward.apps.approvals.web.listening import (
    BoundedConnection,
    OwnerOnly,
    answering_of,
    bind_loopback,
    bind_operator,
    server_of,
    with_credential,
)
from leeward.apps.audit.journal import default_folder
from leeward.apps.audit.record import AuditRecord, torn_record
from leeward.errors import ShuttingDown
from leeward.spec import own_sockets
from leeward.spec.paths import approvals_socket

#: Seconds between two checks for expired requests.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of the command."""

    project: str = ""  # the folder for the operator's own requests about files; "" for none
    socket: str | None = None  # the operator's; None for the default
    daemon: str | None = None  # the daemon's socket; None for the default
    lasts: float | None = None  # seconds after which the service ends; None for no end
    port: int | None = None  # of loopback TCP, for the page and REST; None for no TCP
    head: str | None = None  # folder in which the head of the record is kept; None for the record's own
    config: str | None = None  # the file for `operator_policy`; None for the default one, if it exists


def serve(options: ServeOptions, ready: Callable[[str, str], None]) -> int:
    """
    Serve until a signal or the end of the service's time; returns the exit status. *ready* gets the path of the
    operator's socket when it listens, and a link that logs a browser in, once; "" without a port.

    BadRequest if there is no such project or the configuration is wrong, Busy if another service has the folder, the
    socket or the port, Unsupported if another user can write to a folder.
    """
    folder, policy = state_folder(os.environ), operator_policy(options.config, os.environ)
    own_folder(folder)
    until = None if options.lasts is None else time.time() + options.lasts
    with contextlib.closing(ApprovalQueue(folder, forbidden=policy.forbidden, endpoints=policy.endpoints)) as queue:
        if torn_record(default_folder(os.environ)):
            print("leeward approvals: the last line of the record is half-written; the record goes on behind it, and"
                  " `leeward audit mend` takes it out once the service has ended", file=sys.stderr)
        with contextlib.closing(AuditRecord(default_folder(os.environ), options.head)) as journal:
            project = OpenProjects(None).open(os.path.realpath(options.project)) if options.project else None
            service = ApprovalService(queue, journal, folder, project, until, options.daemon)
            with contextlib.closing(Notifier(queue, policy.notify, options.daemon)) if policy.notify else (
                    contextlib.nullcontext()):
                asyncio.run(_serve(service, options, ready))
    return 0


async def _serve(service: ApprovalService, options: ServeOptions, ready: Callable[[str, str], None]) -> None:
    path = approvals_socket(options.socket, os.environ, os.geteuid())
    app = application(service)
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    service.answering = answering_of(app, loop)
    service.subscribe_stop(lambda: app.state.parts.feed.shut_down("the service ends"))
    servers = [(server_of(with_credential(app, Operator("cli")), OwnerOnly), bind_operator(path))]
    if options.port is not None:
        servers.append((server_of(app, BoundedConnection), bind_loopback(options.port)))
        service.port = options.port
    link = own_sockets.register(path)
    tasks = [asyncio.ensure_future(server.serve([each])) for server, each in servers]
    try:
        await asyncio.to_thread(service.start)
        port = options.port
        ready(path, "" if port is None else f"http://127.0.0.1:{port}/login?token={app.state.parts.access.login_token()}")
        await _until_over(service, over)
    finally:
        await asyncio.to_thread(service.stop)
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)
        if os.path.lexists(path):
            os.unlink(path)
        own_sockets.forget(link)


async def _until_over(service: ApprovalService, over: asyncio.Event) -> None:
    """Expire requests until *over* is set or the service's time ends."""
    while not over.is_set():
        left = _LOOK_S if service.ends is None else min(_LOOK_S, service.ends - time.monotonic())
        if left <= 0:
            print(f"leeward approvals: its {duration_text(service.until - service.started)} are over"
                  if service.until is not None else "", file=sys.stderr)
            return
        try:
            await asyncio.wait_for(over.wait(), left)
        except TimeoutError:
            try:
                await asyncio.to_thread(service.queue.expire)
            except ShuttingDown:
                return
