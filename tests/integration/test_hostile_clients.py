"""What a client does to the daemon beside its requests: descriptors that nobody asked for."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import reactors
from kit.live_daemon import PATIENCE, LiveDaemon, held
from kit.stalling import standing_still
from kit.waiting import poll_until
from leeward.daemon.descriptors import RESULTS
from leeward.daemon.loop.closing import refuse_descriptors
from leeward.daemon.serving.listener import Inherited
from leeward.wire.frames import HEADER, VERSION, decode, encode
from leeward.wire.requests import encode_request
from leeward.wire.sandbox_requests import SandboxDock


def passes(sock: socket.socket) -> int:
    """Send a descriptor over *sock* with a byte; 0, or the errno."""
    rights = array.array("i", [sock.fileno()])
    try:
        sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.needs("kernel>=6.16")
@pytest.mark.parametrize("way", reactors.WAYS)
def test_a_client_cannot_pass_descriptors(tmp_path: Path, way: str) -> None:
    plain = socket.socket(socket.AF_UNIX)
    plain.bind(str(tmp_path / "plain"))
    plain.listen()
    with plain, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "plain"))
        assert 0 == passes(client)  # control: the kernel lets anybody do it, unless the listener says no

    with LiveDaemon(tmp_path, *reactors.OPTIONS[way]) as daemon, daemon.client() as client:
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as hostile:
                hostile.connect(str(daemon.socket))
                assert errno.EPERM == passes(hostile)
        assert b"on\n" == client.execute("print('on')").stdout


@pytest.mark.needs("kernel>=6.16")
def test_a_client_cannot_pass_descriptors_to_a_listener_of_the_service_manager(tmp_path: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(tmp_path / "kept"))
    made.listen()
    listener = Inherited(made)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "kept"))
        assert errno.EPERM == passes(client)
    listener.close()


def test_a_kernel_without_so_passrights_is_reported() -> None:
    with socket.socket(socket.AF_INET) as sock:
        assert not refuse_descriptors(sock)  # no Unix socket: refused as on a kernel before 6.16


# --- where the kernel lets everybody pass descriptors --------------------------

#: Seconds for which a close of the descriptor lasts, or until the test is over: longer than whoever is served waits on
#: any machine; and in the control, where somebody does wait for it.
LINGER_S, SHORT_S = 4 * PATIENCE, 3.0


@contextlib.contextmanager
def lingering(seconds: float = LINGER_S) -> Iterator[socket.socket]:
    """
    A TCP socket whose last close waits for so long: its peer doesn't read what it has sent. The test has no descriptor
    of it any more after `hand_over`.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        mine = socket.socket()
        mine.connect(listener.getsockname())
        peer, _ = listener.accept()
        with peer:
            mine.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    mine.send(bytes(1 << 16))
            mine.setblocking(True)
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(seconds)))
            yield mine


def hand_over(daemon: LiveDaemon, mine: socket.socket, data: bytes, flags: int = 0) -> socket.socket:
    """Pass the last descriptor of *mine* to the daemon, with *data*."""
    hostile = socket.socket(socket.AF_UNIX)
    hostile.connect(str(daemon.socket))
    rights = array.array("i", [mine.fileno()])
    hostile.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], flags)
    mine.close()
    return hostile


def slowest(daemon: LiveDaemon) -> float:
    """The longest time that one of ten jobs took, the first with its connection."""
    most, start = 0.0, time.monotonic()
    with daemon.client() as client:
        for _ in range(10):
            assert b"on\n" == client.execute("print('on')").stdout
            now = time.monotonic()
            most, start = max(most, now - start), now
    return most


def test_control_a_descriptor_that_is_closed_in_the_loops_thread_holds_it_up(tmp_path: Path) -> None:
    over = threading.Event()
    waits: list[float] = []

    def ping() -> None:  # one is always on its way: whenever the loop stands, it waits
        with daemon.client() as client:
            while not over.is_set():
                start = time.monotonic()
                client.ping()
                waits.append(time.monotonic() - start)

    with standing_still(tmp_path, "--io=socket", rights=True, guarded=False) as daemon, lingering(SHORT_S) as mine:
        other = threading.Thread(target=ping)
        other.start()
        try:
            with hand_over(daemon, mine, b"\0"):
                poll_until(lambda: max(waits, default=0.0) > SHORT_S / 3, "the thread that pings tells of none")
        finally:
            over.set()
            other.join()


@pytest.mark.parametrize("way", [reactors.REFERENCE, *reactors.WAYS])
@pytest.mark.parametrize("data", [b"\0", b"x" * 4096], ids=["begun", "no-frame"])
def test_a_descriptor_that_takes_long_to_close_does_not_delay_the_loop(tmp_path: Path, way: str, data: bytes) -> None:
    """Its connection is ended; nobody else notices, and nothing of it is left."""
    with standing_still(tmp_path, *reactors.OPTIONS[way], rights=True) as daemon:
        daemon.idle()
        before = held(daemon.process.pid)
        with lingering() as mine, hand_over(daemon, mine, data) as hostile:
            assert slowest(daemon) < LINGER_S / 2
            hostile.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):  # what it has sent was never read
                assert b"" == hostile.recv(1)
            assert slowest(daemon) < LINGER_S / 2
        poll_until(lambda: (daemon.idle(), held(daemon.process.pid) <= before)[1], "descriptors of another process")


def test_a_descriptor_that_is_never_received_does_not_delay_the_loop(tmp_path: Path) -> None:
    """The client goes at once, or is told that there is no place: its socket is closed with all that is in it."""
    config = tmp_path / "config.toml"
    config.write_text("max_connections = 2\n")
    config.chmod(0o600)
    with standing_still(tmp_path, f"--config={config}", rights=True) as daemon, contextlib.ExitStack() as kept:
        for _ in range(4):
            mine = kept.enter_context(lingering())
            hand_over(daemon, mine, b"\0").close()
            mine = kept.enter_context(lingering())
            kept.enter_context(hand_over(daemon, mine, b"\0"))
        for _ in range(20):
            start = time.monotonic()
            with contextlib.suppress(leeward.Busy, leeward.NoAnswer), daemon.client() as client:
                client.ping()
            assert time.monotonic() - start < LINGER_S / 2


@pytest.mark.needs("kernel>=5.15")  # urgent bytes on Unix sockets
def test_a_descriptor_beside_an_urgent_byte_does_not_delay_the_loop(tmp_path: Path) -> None:
    with standing_still(tmp_path, rights=True) as daemon, lingering() as mine, hand_over(
            daemon, mine, b"u", socket.MSG_OOB) as hostile:
        hostile.send(b"\0")
        assert slowest(daemon) < LINGER_S / 2


@pytest.mark.parametrize("way", [reactors.REFERENCE, *reactors.WAYS])
def test_a_client_that_passes_no_descriptor_is_served_as_ever(tmp_path: Path, way: str) -> None:
    """By a connection that is looked at before it is received from."""
    with standing_still(tmp_path, *reactors.OPTIONS[way], rights=True) as daemon, daemon.client() as client:
        for size in (1, 1 << 10, 1 << 17, 1 << 21):
            result = client.execute("import sys; print(len(sys.stdin.read()))", stdin=b"x" * size)
            assert b"%d\n" % size == result.stdout
        with client.session() as session:
            assert [b"1\n"] * 3 == [session.execute("print(1)").stdout for _ in range(3)]


# --- docks: sockets that do take descriptors -----------------------------------


def left_on_a_dock(daemon: LiveDaemon, mine: socket.socket, *before: bytes) -> tuple[socket.socket, int]:
    """
    Leave the last descriptor of *mine* on a dock, behind these messages. Returns the connection that has the dock, and
    the dock's number.
    """
    hostile = socket.socket(socket.AF_UNIX)
    hostile.connect(str(daemon.socket))
    hostile.sendall(encode_request(SandboxDock(1)))
    answer, (dock,), _, _ = socket.recv_fds(hostile, 1 << 16, 1)
    with socket.socket(fileno=dock) as far:
        for message in before:
            far.send(message)
        far.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [mine.fileno()]))])
    mine.close()
    return hostile, decode(answer[HEADER:])["ok"]["dock"]


@pytest.mark.parametrize("before", [(), (b"",), (b"x",) * 20], ids=["alone", "behind-nothing", "behind-many"])
def test_c395_a_descriptor_that_is_left_on_a_dock_does_not_delay_the_loop(tmp_path: Path,
                                                                          before: tuple[bytes, ...]) -> None:
    """Its client goes without having named the dock in a request."""
    with LiveDaemon(tmp_path) as daemon, lingering() as mine:
        left_on_a_dock(daemon, mine, *before)[0].close()
        assert slowest(daemon) < LINGER_S / 2


def test_c395_a_descriptor_behind_those_that_a_request_names_does_not_delay_the_loop(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path) as daemon, lingering() as mine:
        hostile, dock = left_on_a_dock(daemon, mine, b"x" * 9)
        with hostile:
            folder = {"path": str(tmp_path), "target": "/data", "writable": False, "overlay": False}
            hostile.sendall(encode({"v": VERSION, "id": 2, "op": "sandbox_open", "mounts": [folder], "dock": dock}))
            hostile.settimeout(PATIENCE)
            assert b"0 descriptors came with them" in hostile.recv(1 << 16)
            assert slowest(daemon) < LINGER_S / 2
            (tmp_path / "project").mkdir()
            with leeward.Sandbox(socket=daemon.socket, workdir=tmp_path / "project") as box:
                assert b"on\n" == box.run(["echo", "on"]).stdout


def test_c396_docks_count_as_descriptors_that_a_client_does_not_take(tmp_path: Path) -> None:
    """All of them together are as many as there may be large results, however many connections a client has."""
    with LiveDaemon(tmp_path) as daemon, contextlib.ExitStack() as kept:
        daemon.idle()
        before, said = held(daemon.process.pid), b""
        for _ in range(RESULTS):
            hostile = kept.enter_context(socket.socket(socket.AF_UNIX))
            hostile.connect(str(daemon.socket))
            hostile.settimeout(PATIENCE)
            for number in (1, 2):
                hostile.sendall(encode_request(SandboxDock(number)))
                said, (*fds,), _, _ = socket.recv_fds(hostile, 1 << 16, 1)
                for fd in fds:
                    os.close(fd)
        assert b"large results wait" in said
        assert held(daemon.process.pid) <= before + 2 * RESULTS
        kept.close()
        with daemon.client() as client:
            assert b"on\n" == client.execute("print('on')").stdout


def test_c418_cannot_stop_jobs_by_connections_that_read_nothing(tmp_path: Path) -> None:
    """Of the same user, with as many large results as there may be: the one that is lazy for longest is closed."""
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon, contextlib.ExitStack() as kept:
        daemon.idle()
        for _ in range(20):
            hostile = kept.enter_context(socket.socket(socket.AF_UNIX))
            hostile.connect(str(daemon.socket))
            hostile.sendall(b"".join(encode({
                "v": VERSION, "id": number, "op": "execute", "code": b"open('a', 'wb').write(bytes(900_000))",
                "collect": ["a"]}) for number in range(1, 9)))
            daemon.until(lambda status: not status["queued"])  # it has room for 64
        daemon.idle()
        with daemon.client() as client:
            took = []
            for _ in range(20):
                began = time.monotonic()
                assert b"on\n" == client.execute("print('on')").stdout
                took.append(time.monotonic() - began)
        assert max(took) < 10, took
