"""`leeward daemon stop`: whose end it waits for, and what it says where that doesn't come."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.fake_daemon import PATIENCE, FakeDaemon, Rogue
from leeward.errors import DaemonAway, Forbidden, NoAnswer, RequestRejected, VersionMismatch
from leeward.wire.frames import FrameReader, decode, encode
from leeward_cli import stopping
from leeward_cli.stopping import stop

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def refusing(kind: str, message: str) -> Answer:
    """Of a shutdown; a ping is answered."""
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "shutdown" == request["op"]:
            return {"error": {"kind": kind, "message": message}}
        return {"ok": {}}
    return answer


def answering(answer: Answer, sock: socket.socket) -> None:
    reader = FrameReader()
    while data := sock.recv(1 << 16):
        for payload in reader.feed(data):
            request = decode(payload)
            sock.sendall(encode({"id": request["id"], **answer(request)}))


def test_stop_without_a_daemon_is_an_error(tmp_path: Path) -> None:
    """With the words of every command."""
    with pytest.raises(DaemonAway):
        stop(str(tmp_path / "s"))


def test_a_process_that_lives_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is gone, and this process, which had it, is not."""
    monkeypatch.setattr(stopping, "STOP_S", 0.3)
    with FakeDaemon(tmp_path / "s"), pytest.raises(NoAnswer, match=f"`kill -9 {os.getpid()}`"):
        stop(str(tmp_path / "s"))


def test_stop_waits_for_the_process_that_answers_not_the_maker_of_the_socket(tmp_path: Path) -> None:
    """A child serves our socket, as a service does its manager's: the kernel knows whose bytes came."""
    program = ("import socket, sys\n"
               "from leeward.wire.frames import FrameReader, decode, encode\n"
               "sock, _ = socket.socket(fileno=int(sys.argv[1])).accept()\n"
               "reader, told = FrameReader(), []\n"
               "while 'shutdown' not in told:\n"
               "    for payload in reader.feed(sock.recv(4096)):\n"
               "        request = decode(payload)\n"
               "        told.append(request['op'])\n"
               "        sock.sendall(encode({'id': request['id'], 'ok': {'pid': 1}}))\n"
               "sock.close()\n"
               "sys.stdin.read()\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        daemon = subprocess.Popen([sys.executable, "-c", program, str(listener.fileno())], stdin=subprocess.PIPE,
                                  pass_fds=[listener.fileno()],
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        ends: list[int] = []
        waits = threading.Thread(target=lambda: ends.append(stop(str(tmp_path / "s"))))
        waits.start()
        waits.join(0.5)
        assert waits.is_alive()  # its connection may be over; it isn't
        daemon.communicate()
        waits.join(PATIENCE)

    assert [0] == ends


def test_an_older_daemon_that_knows_no_hurry_goes_on(tmp_path: Path) -> None:
    """It refuses the field: the user hears what to do."""
    old = refusing("bad_request", "shutdown has no field 'now'")
    with Rogue(tmp_path / "s", lambda sock: answering(old, sock)):
        with pytest.raises(RequestRejected, match="too old to know --now, and goes on"):
            stop(str(tmp_path / "s"), now=True)
        with pytest.raises(RequestRejected, match=r"^shutdown has no field 'now'$"):
            stop(str(tmp_path / "s"))


def test_a_daemon_of_another_version_ends(tmp_path: Path) -> None:
    """It refuses every request, and is ended by a signal; its process, and no other, is waited for."""
    program = ("import socket, sys\n"
               "from leeward.wire.frames import FrameReader, decode, encode\n"
               "sock, _ = socket.socket(fileno=int(sys.argv[1])).accept()\n"
               "reader = FrameReader()\n"
               "while data := sock.recv(4096):\n"
               "    for payload in reader.feed(data):\n"
               "        answer = {'error': {'kind': 'version', 'message': 'I speak 9'}}\n"
               "        sock.sendall(encode({'id': decode(payload)['id'], **answer}))\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        daemon = subprocess.Popen([sys.executable, "-c", program, str(listener.fileno())], pass_fds=[listener.fileno()],
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        try:
            assert 0 == stop(str(tmp_path / "s"))
            assert -signal.SIGTERM == daemon.wait(PATIENCE)
        finally:
            daemon.kill()
            daemon.wait()


def test_a_daemon_of_another_version_that_cannot_be_seen_goes_on(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another user, or in another pid namespace: the refusal is passed on."""
    monkeypatch.setattr(stopping, "pidfd_of", lambda pid: -1)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return {"error": {"kind": "version", "message": "I speak 9"}}

    with Rogue(tmp_path / "s", lambda sock: answering(answer, sock)), pytest.raises(VersionMismatch, match="I speak 9"):
        stop(str(tmp_path / "s"))


def test_a_guest_cannot_stop_it(tmp_path: Path) -> None:
    """It is asked once, and the refusal passed on."""
    with Rogue(tmp_path / "s", lambda sock: answering(refusing("forbidden", "not yours"), sock)), \
            pytest.raises(Forbidden, match="not yours"):
        stop(str(tmp_path / "s"), now=True)


@pytest.mark.parametrize("now", [False, True])
def test_stop_sends_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool) -> None:
    """A hurry only where it was asked for: older daemons know the request without the field."""
    monkeypatch.setattr(stopping, "pidfd_of", lambda pid: -1)
    asked: list[dict[str, Any]] = []

    def serve(sock: socket.socket) -> None:
        reader = FrameReader()
        while len(asked) < 2:
            for payload in reader.feed(sock.recv(1 << 16)):
                asked.append(decode(payload))
                sock.sendall(encode({"id": asked[-1]["id"], "ok": {}}))

    with Rogue(tmp_path / "s", serve):
        assert 0 == stop(str(tmp_path / "s"), now)  # seen by the end of the connection

    assert [{"op": "ping"}, {"op": "shutdown", **({"now": True} if now else {})}] == [
        {key: value for key, value in request.items() if key not in ("v", "id")} for request in asked]
