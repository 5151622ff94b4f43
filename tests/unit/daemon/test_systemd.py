"""What a service manager is told, and what it may pass."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kit.live_daemon import environment
from leeward.daemon.systemd import Manager


@pytest.mark.parametrize("abstract", [False, True])
def test_notifications_arrive_by_path_and_by_abstract_name(abstract: bool, tmp_path: Path) -> None:
    """By a path and by an abstract name; and the variables are gone then, for no child is the service."""
    name = f"@leeward-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name[1:]}" if abstract else name)
        heard.settimeout(5)
        environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7", "PATH": "/bin"}
        manager = Manager(environ, 7)
        manager.ready("here")
        manager.alive()
        manager.reloading()
        manager.stopping("going")
        said = [heard.recv(4096).decode().split("\n") for _ in range(4)]
        manager.close()

    assert [["READY=1", "STATUS=here", f"MAINPID={os.getpid()}"], ["WATCHDOG=1"]] == said[:2]
    assert "RELOADING=1" == said[2][0]
    assert 0 < int(said[2][1].removeprefix("MONOTONIC_USEC="))
    assert ["STOPPING=1", "STATUS=going"] == said[3]
    assert 3.0 == manager.watchdog
    assert {"PATH": "/bin"} == environ


@pytest.mark.parametrize("environ", [
    {}, {"NOTIFY_SOCKET": "/none/such"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "soon"},
    {"LISTEN_FDS": "1", "LISTEN_PID": "8"}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "-1", "LISTEN_PID": "7"},
])
def test_variables_meant_for_another_process_are_ignored(environ: dict[str, str]) -> None:
    """A manager that doesn't exist, or that started another process."""
    manager = Manager(dict(environ), 7)
    manager.ready("here")
    manager.close()

    assert 0.0 == manager.watchdog
    assert manager.listener() is None


PROGRAM = """
import os, sys
from leeward.daemon.systemd import Manager
from leeward.errors import BadRequest
environ = {"LISTEN_FDS": sys.argv[1], "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "x"}
manager = Manager(environ, os.getpid())
ours = None
if "ours" in sys.argv:
    import socket
    ours, other = socket.socketpair()
    assert 3 == ours.fileno()
try:
    sock = manager.listener()
    print(sock.getsockname(), sock.getblocking(), os.get_inheritable(3), manager.listener(), environ)
except BadRequest as error:
    print(error)
if ours:
    print(2 == ours.send(b"it"))
"""


def passed(sock: socket.socket | None, count: int = 1, *more: str) -> str:
    """What a process says that has *sock* as its descriptor 3."""
    def place() -> None:
        if sock is not None:
            os.dup2(sock.fileno(), 3)
    # A shell wouldn't do: the descriptor has to be 3, whatever number it has here.
    fds = () if sock is None else (3,)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(count), *more], env=environment(), capture_output=True,
                          text=True, check=True, pass_fds=fds, preexec_fn=place, timeout=60)
    return done.stdout


def test_a_socket_is_taken(tmp_path: Path) -> None:
    """Close-on-exec and non-blocking, once."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()

        assert f"{tmp_path / 's'} False False None {{}}\n" == passed(sock)


def test_a_descriptor_that_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    """One that doesn't listen, one for datagrams, one of the network, none, and two."""
    said = []
    for family, kind in ((socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_UNIX, socket.SOCK_DGRAM),
                         (socket.AF_INET, socket.SOCK_STREAM)):
        with socket.socket(family, kind) as sock:
            if socket.AF_INET == family:
                sock.bind(("127.0.0.1", 0))
                sock.listen()
            said.append(passed(sock))
    said.append(passed(None))

    assert all("descriptor 3, which LISTEN_FDS passes" in words for words in said)
    assert "2 sockets were passed" in passed(None, 2)


def test_a_descriptor_of_the_daemons_own_is_not_taken() -> None:
    """
    Where none was passed, the first that the daemon opens has that number: its zygote's channel. It was closed, and the
    error said nothing of LISTEN_FDS.
    """
    assert "descriptor 3, which LISTEN_FDS passes: bad file descriptor\nTrue\n" == passed(None, 1, "ours")
