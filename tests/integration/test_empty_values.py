"""Empty texts, lists and maps in every field of every request: served or refused, and none a fault of the daemon's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from leeward.base.dataclass import MISSING
from leeward.client.connection import BlockingConnection
from leeward.errors import DaemonError
from leeward.spec.outcome import Outcome
from leeward.wire.requests import OPERATIONS

EMPTY: tuple[Any, ...] = ("", b"", [], {}, 0, False, [""], [b""], [[]], [{}], {"": ""}, {"": b""}, {"a": ""}, {"names": []})

#: Requests that end what the others need.
_ENDING = {"shutdown", "sandbox_kill"}

DAEMON = ("--pool-size", "2")


@pytest.fixture(scope="module")
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket) as made:
        yield made


@pytest.mark.parametrize("op", sorted(OPERATIONS.keys() - _ENDING))
def test_empty_values_are_no_fault_of_the_daemons(daemon: LiveDaemon, box: leeward.Sandbox, op: str) -> None:
    fields = OPERATIONS[op].fields
    needed = {"sandbox": box.id, "target": 1, "code": b"", "signal": 1, "rows": 1, "columns": 1, "url": "x", "hide": [],
              "path": "a", "name": "a"}
    given = {name: needed.get(name, 0) for name, field in fields.items() if field.absent is MISSING}
    if op in ("process_run", "process_start"):
        given["argv"] = ["true"]
    said: list[tuple[str, Any, str]] = []
    for name in fields:
        for value in EMPTY:
            if not isinstance(value, {"files": dict, "stdin": bytes}.get(name, object)):
                continue  # the client looks into it
            asked = {**given, name: value}
            if "shell" == name:
                del asked["argv"]
            with contextlib.closing(BlockingConnection(daemon.socket)) as connection:
                try:
                    reply, descriptors = connection.call(op, asked, retry=False, retry_busy=False)
                except DaemonError as error:
                    said.append((name, value, str(error)))
                    continue
                for fd in descriptors:
                    os.close(fd)
                if "sandbox_open" == op:
                    assert reply.ok is not None
                    connection.call("sandbox_kill", {"sandbox": reply.ok["sandbox"]})

    assert [] == [row for row in said if "bug" in row[2]]


@pytest.mark.parametrize("line", ["", " ", "\n", "#"])
def test_a_line_that_does_nothing(daemon: LiveDaemon, line: str) -> None:
    with leeward.Sandbox(socket=daemon.socket) as box:
        for got in (box.shell(line), box.start(line).result(), box.shell(line, on_stdout=print)):
            assert (Outcome.FINISHED, 0, b"", b"") == (got.outcome, got.exit_code, got.stdout, got.stderr)
