"""Hostile clients against a real daemon, and a good one beside them. In the catalogue: daemon and protocol."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import features
from kit.live_daemon import PATIENCE, LiveDaemon, held
from kit.ordinary_user import OrdinaryUser
from kit.waiting import poll_until
from leeward.wire.frames import MAX_REQUEST, FrameReader, decode, encode, frame

DAEMON = ("--pool-size", "2")


def connect(daemon: LiveDaemon) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE)
    sock.connect(str(daemon.socket))
    return sock


def replies(sock: socket.socket, count: int) -> list[dict[str, Any]]:
    """The next *count* replies, or those until the end of the stream."""
    reader, got = FrameReader(), []
    while len(got) < count:
        try:
            data = sock.recv(1 << 16)
        except ConnectionResetError:
            break
        if not data:
            break
        got += [decode(payload) for payload in reader.feed(data)]
    return got


def serves(daemon: LiveDaemon) -> None:
    """Three plain jobs, as every case ends."""
    with daemon.client() as client:
        assert ["0\n", "1\n", "2\n"] == [client.execute(f"print({number})").stdout_text for number in range(3)]


def test_c098_slow_clients_do_not_delay_others(daemon: LiveDaemon) -> None:
    """
    Two hundred with half a frame, fifty that never read, and a good one. What they cost it is counted in
    tests/unit/daemon/serving/test_floods.py.
    """
    loris = []
    for number in range(250):
        sock = connect(daemon)
        loris.append(sock)
        if number < 200:
            sock.send(encode({"v": 1, "id": 1, "op": "execute", "code": b"#" * 5000})[:3000])
        else:
            sock.send(b"".join(encode({"v": 1, "id": n + 1, "op": "status"}) for n in range(50)))
    try:
        serves(daemon)
    finally:
        for sock in loris:
            sock.close()

    daemon.until(lambda status: status["connections"] == 1)


@pytest.mark.parametrize("data", [
    frame(b""), struct.pack(">I", 1) + b"\xc1", struct.pack(">I", 2**31), struct.pack(">Q", 2**63),
    struct.pack(">I", MAX_REQUEST + 1), b"\xff" * 100_000, frame(b"\x81\xa1a" + b"\x91" * 100_000),
], ids=["empty", "one byte", "2^31", "2^63", "one too long", "noise", "nesting"])
def test_c099_c100_broken_streams(daemon: LiveDaemon, data: bytes) -> None:
    """A refusal with id 0, the end of the connection, and no memory for claimed lengths."""
    def resident() -> int:
        return int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    serves(daemon)
    before = resident()
    for _ in range(20):
        with connect(daemon) as sock:
            try:
                sock.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it was refused before it was all sent
            assert [0] == [reply["id"] for reply in replies(sock, 1)]
            assert [] == replies(sock, 1)
    serves(daemon)

    assert resident() - before < 8 << 20


def test_c101_64_mib_of_code(daemon: LiveDaemon) -> None:
    """One refusal, and the connection lives."""
    with daemon.client() as client:
        with pytest.raises(leeward.RequestRejected, match="code has 67108864 bytes"):
            client.execute(b"#" * (64 << 20))
        assert "1\n" == client.execute("print(1)").stdout_text
        with pytest.raises(leeward.RequestRejected, match="can't be sent"):
            client.execute(b"#" * (90 << 20))
        assert "1\n" == client.execute("print(1)").stdout_text


def test_large_inputs_arrive(daemon: LiveDaemon) -> None:
    """Control: 40 MiB of standard input is no attack."""
    with daemon.client() as client:
        result = client.execute("import sys; print(len(sys.stdin.buffer.read()))", stdin=bytes(40 << 20))

    assert f"{40 << 20}\n" == result.stdout_text, result


def test_c102_cancelling_somebody_elses_request(daemon: LiveDaemon) -> None:
    """By its id, from another connection: nothing."""
    with connect(daemon) as mine, connect(daemon) as theirs:
        mine.sendall(encode({"v": 1, "id": 5, "op": "execute", "code": b"import time; time.sleep(60)"}))
        theirs.sendall(encode({"v": 1, "id": 1, "op": "cancel", "target": 5}))

        assert [{"id": 1, "ok": {"cancelled": False}}] == replies(theirs, 1)
        mine.sendall(encode({"v": 1, "id": 6, "op": "cancel", "target": 5, "kill": True}))
        answers = {reply["id"]: reply["ok"] for reply in replies(mine, 2)}
        assert ({"cancelled": True}, 137) == (answers[6], answers[5]["exit_code"])


def test_c103_clients_that_vanish_anywhere(daemon: LiveDaemon) -> None:
    """Three hundred times, at every point of a request: nothing grows, and the others are served."""
    def descriptors() -> int:
        daemon.idle()
        return held(daemon.process.pid)

    serves(daemon)
    request = encode({"v": 1, "id": 1, "op": "execute", "code": b"print('x' * (1 << 20))"})
    before = descriptors()
    for number in range(300):
        sock = connect(daemon)
        if number % 4:
            sock.send(request if number % 4 > 1 else request[:number % len(request)])
        if number % 4 == 3:
            sock.recv(100)  # the head of a reply, and its descriptor is thrown away
        sock.close()
    serves(daemon)
    poll_until(lambda: descriptors() <= before + 1,  # + 1: the connection that asks for status
               "the daemon sees the ends of connections one after the other")


@pytest.mark.needs("root", "ordinary-user")
def test_c104_another_user_is_turned_away(open_folder: Path, ordinary_user: OrdinaryUser) -> None:
    """Even if the folder and the socket were opened to everybody."""
    program = ("import socket, sys\nsock = socket.socket(socket.AF_UNIX)\nsock.settimeout(30)\n"
               "sock.connect(sys.argv[1])\nprint(sock.recv(4096))\nprint(sock.recv(1))")
    folder = open_folder / "exposed"
    with LiveDaemon(folder, "--pool-size", "1") as daemon:
        closed = ordinary_user.run([str(features.system_python()), "-c", program, str(daemon.socket)])
        folder.chmod(0o755)
        daemon.socket.chmod(0o666)
        done = ordinary_user.run([str(features.system_python()), "-c", program, str(daemon.socket)])
        serves(daemon)

        assert "PermissionError" in closed.stderr
        assert b"forbidden" in done.stdout.encode()
        assert done.stdout.endswith("\nb''\n")
        assert any(row.get("event") == "peer refused" and row["user"] == ordinary_user.uid for row in daemon.log)


@pytest.mark.smoke
def test_c105_a_job_cannot_reach_the_daemon(daemon: LiveDaemon) -> None:
    """Neither by the socket's path nor by looking for it."""
    path = str(daemon.socket)
    attack = (f"import os, socket\nprint(os.path.exists({path!r}))\nsock = socket.socket(socket.AF_UNIX)\n"
              f"try:\n    sock.connect({path!r}); print('in')\n"
              "except OSError as error:\n    print(type(error).__name__)\n"
              "print([line for line in open('/proc/net/unix')][1:])")
    with connect(daemon) as sock:  # control: outside it is in reach
        sock.sendall(encode({"v": 1, "id": 1, "op": "ping"}))
        assert [1] == [reply["id"] for reply in replies(sock, 1)]
    with daemon.client() as client:
        result = client.execute(attack)

    assert ["False", "FileNotFoundError"] == result.stdout_text.split()[:2]
    assert "leeward" not in result.stdout_text


def test_c108_without_descriptors(tmp_path: Path) -> None:
    """More connections than the daemon may have: those that are served are served, and it recovers."""
    config = tmp_path / "c.toml"
    config.write_text("max_connections = 20\n")
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--pool-size", "1", "--config", str(config)) as daemon:
        socks = [connect(daemon) for _ in range(20)]
        for sock in socks:  # or they would make room: who says nothing is idle at once
            sock.sendall(encode({"v": 1, "id": 1, "op": "ping"}))
        with pytest.raises(leeward.Busy, match="20 connections"), \
                leeward.Client(str(daemon.socket), retry_busy=False) as client:
            client.ping()
        for sock in socks:
            sock.close()

        def recovered() -> bool:
            try:
                serves(daemon)
            except leeward.Busy:
                return False
            return True
        poll_until(recovered, "the daemon sees the ends of connections one after the other")
