"""Attacks on the page of approvals, which is on the host's loopback: from a sandbox, and by another user of the host."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.approvals import ServedApprovals
from kit.attack import within, without
from kit.box import Box, control
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.loopback import Quiet, free_port, serving

KNOCK = """
import socket
said = []
for host in hosts:
    try:
        with socket.create_connection((host, port), 5) as connected:
            connected.sendall(b"GET /login HTTP/1.0\\r\\n\\r\\n")
            said.append(connected.recv(100).decode().split()[1])
    except OSError as error:
        said.append(errno.errorcode.get(error.errno, "none"))
tell(said)
"""


class _Answer(Quiet):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def page() -> Iterator[int]:
    """The port of something that listens where the page would."""
    with serving(_Answer) as port:
        yield port


@pytest.mark.smoke
@pytest.mark.no_single_lock("its network namespace is a worker's from its first moment; nothing takes it out")
def test_c325_cannot_reach_the_page_by_loopback(box: Box, page: int) -> None:
    """By no name and no number of this host."""
    hosts = ["127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2", "::ffff:127.0.0.1", socket.gethostname()]
    with control():
        assert "200" == without(KNOCK, hosts=hosts, port=page)[0]

    said = within(box, KNOCK, hosts=hosts, port=page)

    assert len(hosts) == len(said)
    assert "200" not in said
    assert said[0] in ("EACCES", "ECONNREFUSED")  # Landlock's rule about TCP; without it nobody listens there


#: Keeps as many connections as it can, and makes new ones for those that are closed.
HOLD = """
import os, selectors, socket, sys
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
port, held = int(sys.argv[1]), selectors.DefaultSelector()
def more():
    made = socket.socket()
    try:
        made.connect(("127.0.0.1", port))
        made.sendall(b"GET /login HTTP/1.1\\r\\nHo")
    except OSError:
        return made.close()
    held.register(made, selectors.EVENT_READ)
for _ in range(400):
    more()
print("held", flush=True)
while True:
    for key, _ in held.select():
        held.unregister(key.fileobj)
        key.fileobj.close()
        more()
"""


def _answers(port: int, token: str) -> int:
    """How many of 20 requests of the operator's are answered."""
    count = 0
    for _ in range(20):
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/requests",
                                       headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                count += answer.status == 200
        except (OSError, urllib.error.URLError):
            pass
    return count


@pytest.mark.needs("extra-web")
@pytest.mark.skipif(0 != os.geteuid(), reason="needs root, to become another user")
@pytest.mark.no_single_lock("the service counts connections of other users, which no lock of a job's is about")
def test_c417_cannot_keep_the_operator_from_the_page(tmp_path: Path) -> None:
    """By keeping connections: each of the operator's requests is answered. The same by the operator's own id does."""
    port = free_port()
    (tmp_path / "d").mkdir()
    with LiveDaemon(tmp_path / "d", "--pool-size", "1") as daemon, \
            ServedApprovals(daemon, tmp_path, "--port", str(port)) as served:
        token = served.connection.call("POST", "/api/tokens")["token"]
        with control(), _holding(port, os.geteuid()):
            assert 20 > _answers(port, token)
        with _holding(port, pwd.getpwnam("nobody").pw_uid):
            assert 20 == _answers(port, token)


class _holding:
    def __init__(self, port: int, user: int) -> None:
        self._made = subprocess.Popen([sys.executable, "-c", HOLD, str(port), str(user)], stdout=subprocess.PIPE)

    def __enter__(self) -> None:
        assert self._made.stdout is not None
        assert b"held\n" == self._made.stdout.readline()

    def __exit__(self, *_: object) -> None:
        self._made.kill()
        self._made.wait()
        assert self._made.stdout is not None
        self._made.stdout.close()
