"""Servers in live sandboxes on ports of the host: HTTP and WebSocket, by both clients and the command."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.loopback import free_port
from kit.waiting import poll_until
from leeward.client.process import Process

#: An echo over WebSocket, with what a sandbox has: an interpreter.
WEBSOCKET = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8000))
print("listens", flush=True)
while True:
    sock, _ = server.accept()
    file = sock.makefile("rwb", 0)
    key = b""
    while (line := file.readline().strip()):
        if line.lower().startswith(b"sec-websocket-key:"):
            key = line.split(b":", 1)[1].strip()
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    file.write(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
               b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    while (head := file.read(2)) and head[0] & 15 != 8:
        mask, data = file.read(4), file.read(head[1] & 127)
        file.write(bytes((head[0], len(data))) + bytes(each ^ mask[at % 4] for at, each in enumerate(data)))
    file.write(b"\\x88\\x00")
    file.close()
    sock.close()
"""

DAEMON = ("--pool-size", "2")


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket, profile="workdir") as made:
        yield made


def serves(box: leeward.Sandbox, address: str = "127.0.0.1") -> Process:
    """A server of HTTP in *box* that has begun to listen on port 8000."""
    server = box.start(["python3", "-u", "-m", "http.server", "8000", "--bind", address])
    assert "Serving HTTP" in server.read(PATIENCE)[0].text
    return server


def fetched(port: int, path: str = "f") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE) as response:
        return response.read()  # type: ignore[no-any-return]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_http(box: leeward.Sandbox, address: str) -> None:
    """Also many megabytes, and from several clients at once."""
    box.files.write("f", b"from inside")
    box.shell("head -c 5000000 /dev/zero > large")
    serves(box, address)
    with box.publish(8000) as published:
        assert b"from inside" == fetched(published.port)
        found: list[bytes] = []
        threads = [threading.Thread(target=lambda: found.append(fetched(published.port, "large"))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [bytes(5_000_000)] * 6 == found
    with pytest.raises(OSError, match="refused"):
        fetched(published.port)


def test_a_websocket_of_an_asyncio_program(daemon: LiveDaemon) -> None:
    async def main() -> None:
        async with leeward.AsyncSandbox(socket=daemon.socket, profile="workdir") as box:
            server = await box.start(["python3", "-c", WEBSOCKET])
            assert (await server.read(PATIENCE))[0].text.startswith("listens")
            async with await box.publish(8000) as published:
                def talk() -> list[str | bytes]:
                    with connect(f"ws://127.0.0.1:{published.port}/") as ws:
                        got = []
                        for word in ("one", "two", "three"):
                            ws.send(word)
                            got.append(ws.recv(timeout=PATIENCE))
                        return got

                assert ["one", "two", "three"] == await asyncio.to_thread(talk)
                assert ["one", "two", "three"] == await asyncio.to_thread(talk)

    asyncio.run(main())


def test_the_command_prints_the_address_and_ends_with_the_sandbox(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    box.files.write("f", b"from inside")
    serves(box)
    made = subprocess.Popen(command("sandbox", "port", box.id, "8000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=environment(daemon.socket), text=True)
    assert made.stdout is not None
    host, _, port = made.stdout.readline().strip().partition(":")
    assert "127.0.0.1" == host
    assert b"from inside" == fetched(int(port))
    box.kill()
    _, said = made.communicate(timeout=PATIENCE)

    assert 0 != made.returncode
    assert "it was killed" in said


def test_the_command_takes_a_port_of_the_host_and_an_interrupt(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    port = free_port()
    argv = command("sandbox", "port", "--on", str(port), box.id, "8000")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(daemon.socket), text=True) as made:
        assert made.stdout is not None
        assert f"127.0.0.1:{port}\n" == made.stdout.readline()
        second = daemon.run(*argv[len(command()):])
        made.send_signal(signal.SIGINT)

    assert b"can't be listened on" in second.stderr
    assert 0 != second.returncode
    assert -signal.SIGINT == made.returncode
    assert box.info()["sandbox"] == box.id


def test_each_connection_is_logged(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    box.files.write("f", b"from inside")
    serves(box)
    with box.publish(8000) as published:
        fetched(published.port)
    daemon.logged(lambda lines: [line for line in lines if "port connected" == line["event"] and box.id == line["sandbox"]
                                 and (8000, os.geteuid()) == (line["port"], line["user"])])


def test_a_connection_costs_milliseconds(box: leeward.Sandbox) -> None:
    box.files.write("f", b"")
    serves(box)
    with box.publish(8000) as published:
        fetched(published.port)
        took = []
        for _ in range(5):
            begun = time.monotonic()
            fetched(published.port)
            took.append(time.monotonic() - begun)
    print("a connection and its answer:", sorted(round(1000 * each, 1) for each in took), "ms")
    assert min(took) < 1.0


def test_a_server_that_has_ended_and_one_that_comes_later(box: leeward.Sandbox) -> None:
    box.files.write("f", b"from inside")
    with box.publish(8000) as published:
        with pytest.raises(OSError, match="reset"):
            fetched(published.port)
        server = serves(box)
        assert b"from inside" == fetched(published.port)
        server.kill()
        server.result()
        with pytest.raises(OSError, match="reset"):
            fetched(published.port)
        poll_until(lambda: 0 == box.info()["processes"], "the daemon forgets it by itself")
        serves(box)
        assert b"from inside" == fetched(published.port)
