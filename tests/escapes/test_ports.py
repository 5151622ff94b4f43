"""
Ports of sandboxes on the host, and what lies at both ends: a sandbox's server, and everybody who can connect to 127.0.0.1.

What must hold: a sandbox begins no connection to the host or to another sandbox; a socket of a sandbox's network that
has left the daemon is worth nothing when the sandbox has ended; neither end takes more than its bounds.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator

import pytest

import leeward
from kit.box import control
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.waiting import poll_until
from leeward.client import aio_ports
from leeward.client.process import Process
from leeward.errors import SandboxOver

BY_NETWORKS = pytest.mark.no_single_lock("each worker has a network of its own, which isn't a lock of a job; and what"
                                         " counts connections is the client")

#: Accepts connections at port 8000 without end, and writes to each; reads nothing.
DEAF = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
print("listens", flush=True)
kept = []
while True:
    kept.append(server.accept()[0])
    kept[-1].send(b"hello")
"""
#: Answers with the error of a connection to *port* of 127.0.0.1, "" if there is none.
DIALS = "import errno,socket,sys; print(errno.errorcode.get(socket.socket().connect_ex(('127.0.0.1', {port})), ''))"

DAEMON = ("--pool-size", "2")


def opened(daemon: LiveDaemon) -> leeward.Sandbox:
    return leeward.Sandbox(socket=daemon.socket, profile="workdir")


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with opened(daemon) as made:
        yield made


def serves(box: leeward.Sandbox, port: int = 8000) -> Process:
    server = box.start(["python3", "-c", DEAF.replace("8000", str(port))])
    assert server.read(PATIENCE)[0].text.startswith("listens")
    return server


def dialled(box: leeward.Sandbox, port: int) -> str:
    return box.run(["python3", "-c", DIALS.format(port=port)]).stdout_text.strip()


def outside(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), PATIENCE)
    assert b"hello" == made.recv(5)
    return made


def reset(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as made, pytest.raises(ConnectionResetError):
        made.recv(1)


@BY_NETWORKS
def test_c500_cannot_reach_the_hosts_loopback_by_a_published_port(box: leeward.Sandbox) -> None:
    """Neither a server of the host's nor the port's own listener: bytes of accepted connections are all that passes."""
    serves(box)
    with socket.create_server(("127.0.0.1", 0)) as hosts, box.publish(8000) as published:
        with control():
            outside(published.port).close()
            with socket.create_connection(hosts.getsockname(), PATIENCE) as there:
                assert hosts.getsockname() == there.getpeername()
        with outside(published.port):
            assert ["ECONNREFUSED"] * 2 == [dialled(box, port) for port in (hosts.getsockname()[1], published.port)]


@pytest.mark.smoke
@BY_NETWORKS
def test_c501_cannot_reach_another_sandboxs_port(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """By its number inside, or by the one on the host."""
    serves(box)
    with box.publish(8000) as published, opened(daemon) as other:
        with control():
            assert "" == dialled(box, 8000)
        assert ["ECONNREFUSED"] * 2 == [dialled(other, port) for port in (8000, published.port)]
        with other.publish(8000) as none:
            reset(none.port)


def lent(box: leeward.Sandbox, port: int) -> socket.socket:
    """A socket of *box*'s network, as a client gets it."""
    _, fds = box._connections.call("sandbox_connect", {"sandbox": box.id, "port": port})
    return socket.socket(fileno=fds[0])


def turned(sock: socket.socket, port: int) -> int:
    """The errno of a new connection by a socket that is connected already: it is dissolved first, by AF_UNSPEC."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.connect(sock.fileno(), bytes(16), 16)
    sock.settimeout(PATIENCE)
    return sock.connect_ex(("127.0.0.1", port))


@BY_NETWORKS
def test_c502_cannot_reach_a_later_sandbox_by_a_socket_of_an_earlier_one(daemon: LiveDaemon) -> None:
    """A client keeps the socket, which no daemon can take back. No further sandbox has that network."""
    with opened(daemon) as first:
        serves(first)
        serves(first, 8001)
        kept = lent(first, 8000)
        with control():
            assert 0 == turned(kept, 8001)
        network = first.run(["readlink", "/proc/self/ns/net"]).stdout
    with contextlib.ExitStack() as boxes:
        for _ in range(4):
            later = boxes.enter_context(opened(daemon))
            serves(later)
            assert network != later.run(["readlink", "/proc/self/ns/net"]).stdout
            assert errno.ECONNREFUSED == turned(kept, 8000)
    kept.close()


@BY_NETWORKS
def test_c503_cannot_hold_a_port_by_a_flood(box: leeward.Sandbox) -> None:
    """Connections that say nothing: so many are open and no more, and the sandbox's other calls go on."""
    serves(box)
    with box.publish(8000) as published, contextlib.ExitStack() as flood:
        with control():
            for _ in range(aio_ports.MOST):
                assert 0 <= flood.enter_context(outside(published.port)).fileno()
        more = [flood.enter_context(socket.create_connection(("127.0.0.1", published.port), PATIENCE)) for _ in range(20)]
        for each in more:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
        assert "fine\n" == box.run(["echo", "fine"]).stdout_text


@BY_NETWORKS
def test_c504_cannot_be_served_by_a_port_whose_process_or_sandbox_is_gone(box: leeward.Sandbox) -> None:
    server = serves(box)
    with box.publish(8000) as published:
        with control(), outside(published.port) as there:
            assert published.port == there.getpeername()[1]
        server.kill()
        server.result()
        reset(published.port)
        serves(box)
        with outside(published.port) as kept:
            box.kill()
            with contextlib.suppress(ConnectionResetError):
                assert b"" == kept.recv(1)
        reset(published.port)
        with pytest.raises(SandboxOver):
            published.wait(PATIENCE)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", published.port), PATIENCE)


@BY_NETWORKS
def test_c505_cannot_starve_the_daemon_by_a_server_that_never_accepts(box: leeward.Sandbox) -> None:
    """Its queue is full, so a connection waits for the kernel's time: not the daemon, and so many at once at most."""
    full = DEAF.replace("create_server((\"127.0.0.1\", 8000))", "create_server((\"127.0.0.1\", 8000), backlog=0)")
    box.start(["python3", "-c", full.replace("while True:", "import time\nwhile True:\n    time.sleep(1000)")]).read(PATIENCE)
    with box.publish(8000) as published, contextlib.ExitStack() as flood:
        for _ in range(40):
            flood.enter_context(socket.create_connection(("127.0.0.1", published.port), PATIENCE))
        begun = time.monotonic()
        with control():
            assert "fine\n" == box.run(["echo", "fine"]).stdout_text
        assert time.monotonic() - begun < PATIENCE
    poll_until(lambda: 0 == box.info()["processes"] - 1, "porters end by their own time")
