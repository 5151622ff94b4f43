"""
The commands `exec`, `ping` and `status`, which use the daemon's socket directly.

A `leeward exec` is one short process, so this module imports neither click nor dataclasses, and the process exits
without finalizing the interpreter.
"""

from __future__ import annotations

import time

from leeward.client.arena import map_arenas
from leeward.client.connection import BlockingConnection
from leeward.client.live_output import LiveJob
from leeward.errors import Cancelled
from leeward.spec.paths import client_socket
from leeward.wire.replies import parse_result
from leeward_cli import job
from leeward_cli.interrupts import INTERRUPTED, CtrlC
from leeward_cli.live_output import ShownOutput
from leeward_cli.messages import escape, write
from leeward_cli.options import UsageError, parse

# Imported in functions: what not every start needs; 53 ms of processor time for all of it.

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from leeward.wire.replies import Reply

ANSWER_S = 5.0


def exec_(argv: Sequence[str]) -> int:
    """Run a job in the daemon. The first Ctrl-C interrupts the job, the second one kills it. Returns the exit status."""
    parsed = parse("exec", argv)
    code = parsed.words or parsed.value("--file") or parsed.value("-m")
    if parsed.value("--image") or (parsed.value("--profile") and not code):
        from leeward_cli.line import run_line

        return run_line(parsed)
    if parsed.value("--user"):
        raise UsageError("--user needs --image")
    if parsed.flag("--show-secrets"):
        raise UsageError("--show-secrets needs --profile shell")
    fields = job.request(parsed)
    if parsed.value("--profile"):
        fields["profile"] = parsed.value("--profile")
    if parsed.value("--environment"):
        fields["environment"] = parsed.value("--environment")
    if parsed.flag("--network") and parsed.value("--egress"):
        raise UsageError("--egress NAME or --network, not both")
    named = "network" if parsed.flag("--network") else parsed.value("--egress")
    if named:
        fields["egress"] = named
    packages = parsed.values("--package")
    if packages and parsed.value("--environment"):
        raise UsageError("--environment NAME or --package, not both")
    connection = BlockingConnection(client_socket(parsed.value("--socket")))
    shown = None if parsed.flag("--json") else ShownOutput(parsed.flag("--raw"))
    live = None if shown is None else LiveJob(shown)
    with CtrlC(lambda how: connection.hurry(how, wait=False)) as interrupts:
        try:
            reply, descriptors = (_with_packages(connection, fields, packages, live) if packages else
                                  connection.call("execute", fields, functions=live))
        except Cancelled:  # the job had no worker yet
            raise KeyboardInterrupt from None
    arenas = map_arenas(descriptors, reply.arenas)
    status = job.show(parse_result(reply), arenas, parsed, shown)
    return INTERRUPTED if interrupts.killed else status


def _with_packages(connection: BlockingConnection, fields: dict[str, Any], packages: list[str],
                   live: LiveJob | None) -> tuple[Reply, list[int]]:
    """The answer of a job with *packages*. If the daemon has no environment with these packages, it is made."""
    from leeward.client.packages import ready, wanted_packages, with_environment
    from leeward_cli.progress import Progress, amount

    ready(connection.path)
    status_reply, _ = connection.call("status", {}, time.monotonic() + ANSWER_S)
    wanted = wanted_packages(tuple(packages), connection.path, status_reply.ok or {})

    def make() -> None:
        began, sizes = time.monotonic(), [0]
        with Progress("installing packages", lambda: amount(sizes[-1], 0, time.monotonic() - began)):
            wanted.make(sizes.append)

    return with_environment(fields, wanted, lambda changed: connection.call("execute", changed, functions=live), make)


def ping(argv: Sequence[str]) -> int:
    parsed = parse("ping", argv)
    BlockingConnection(client_socket(parsed.value("--socket"))).call("ping", {}, time.monotonic() + ANSWER_S)
    write(1, b"Pong!\n")
    return 0


def status(argv: Sequence[str]) -> int:
    parsed = parse("status", argv)
    reply, _ = BlockingConnection(client_socket(parsed.value("--socket"))).call("status", {}, time.monotonic() + ANSWER_S)
    assert reply.ok is not None
    if parsed.flag("--json"):
        import json

        write(1, json.dumps(reply.ok).encode() + b"\n")
    else:
        from leeward_cli.status import status_text

        write(1, escape(status_text(reply.ok).encode("utf-8", "replace")))
    return 0


COMMANDS = {"exec": exec_, "ping": ping, "status": status}
