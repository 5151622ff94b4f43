"""What a blocking connection does about a signal's handler, without a daemon."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest

from leeward.client.connection import BlockingConnection
from leeward.wire.frames import HEADER


def sent(peer: socket.socket) -> list[dict[str, Any]]:
    """The requests that *peer* has by now."""
    data, found = peer.recv(1 << 16), []
    while data:
        size = HEADER + int.from_bytes(data[:HEADER], "big")
        found.append(msgpack.unpackb(data[HEADER:size]))
        data = data[size:]
    return found


def test_a_signal_handler_sends_no_request_while_another_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Both would have the same number, and the second answer would be lost. The handler's request goes behind the other
    one.
    """
    here, there = socket.socketpair()
    connection = BlockingConnection("/nowhere")
    connection._socket, connection._pid, connection._awaited = here, os.getpid(), 1
    request, told = connection._conversation.request, []

    def interrupted(op: str, fields: Mapping[str, Any]) -> tuple[int, bytes]:
        if "ping" == op:
            told.append(connection.hurry("kill", wait=False))
        return request(op, fields)

    monkeypatch.setattr(connection._conversation, "request", interrupted)
    connection.try_to_post("ping", {})
    assert [True] == told
    ping, cancel = sent(there)
    assert ("ping", "cancel", 1, True) == (ping["op"], cancel["op"], cancel["target"], cancel["kill"])
    assert ping["id"] != cancel["id"]

    connection.post("status", {})
    assert ["status"] == [each["op"] for each in sent(there)]  # it was sent once
    connection.close()
    there.close()


def test_a_signal_handler_hurries_no_job_while_none_is_waited_for() -> None:
    connection = BlockingConnection("/nowhere")
    connection._halfway = True
    assert not connection.hurry("interrupt", wait=False)
    connection._halfway = False
    assert not connection.hurry("interrupt", wait=False)
