"""The process: how its answers are sent, and its end."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = pytest.mark.needs("extra-serve")


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.sent = []

    def write(self, data):
        self.sent.append(bytes(data))

    def close(self):
        self.sent.append("closed")


def test_what_is_written_in_one_iteration_is_sent_in_one_piece():
    from leeward.apps.serve.serving import GATHERED, GatheredTransport

    async def run():
        whole = Transport()
        gathered = GatheredTransport(whole, asyncio.get_running_loop())
        gathered.write(b"head ")
        gathered.write(b"")
        gathered.write(b"body")
        assert [] == whole.sent
        await asyncio.sleep(0)
        assert [b"head body"] == whole.sent
        gathered.write(bytes(GATHERED + 1))  # what is much waits in the transport, which says so
        assert [GATHERED + 1] == [len(each) for each in whole.sent[1:]]
        gathered.write(b"end")
        gathered.close()
        await asyncio.sleep(0)
        assert [b"end", "closed"] == whole.sent[2:]

    asyncio.run(run())


def test_a_websocket_whose_client_has_gone_does_not_keep_the_server_from_ending(monkeypatch):
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    from leeward.apps.serve.serving import sockets_of

    def fails(self):
        raise AssertionError

    monkeypatch.setattr(WebSocketsSansIOProtocol, "shutdown", fails)
    kind = sockets_of(["ports"])
    made = kind.__new__(kind)
    made.transport = Transport()
    made.transport.abort = lambda: made.transport.sent.append("aborted")
    made.shutdown()
    assert ["aborted"] == made.transport.sent
    assert "none" == sockets_of(["run-code"])
