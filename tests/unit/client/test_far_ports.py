"""What runs at the other end of an ssh: the frame of a request, whoever sends it."""

from __future__ import annotations

import socket
import threading

import pytest

from leeward.client.far_ports import PIECE, copy, serve, whole


@pytest.mark.parametrize(("sent", "found"), [
    (b"", b""), (b"\0\0", b"\0\0"), (b"\0\0\0\2abc", b"\0\0\0\2ab"), (b"\0\0\0\5a", b"\0\0\0\5a"),
    (b"\xff\xff\xff\xff" + bytes(PIECE + 1), b"\xff\xff\xff\xff" + bytes(PIECE))])
def test_a_frame_is_read_as_far_as_it_goes_and_within_its_bound(sent, found):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        assert found == whole(ours)


def test_an_end_of_one_direction_is_passed_on():
    (client, near), (far, server) = socket.socketpair(), socket.socketpair()
    with client, near, far, server:
        client.sendall(b"asked")
        client.shutdown(socket.SHUT_WR)
        copy(near, far)
        assert b"asked" == server.recv(100)
        assert b"" == server.recv(100)
        server.sendall(b"answered")  # the other one goes on
        assert b"answered" == far.recv(100)


def test_a_client_that_goes_leaves_no_socket_of_a_server_open(tmp_path):
    """The server's socket comes with the answer, which can't be passed on then."""
    ours, theirs = socket.socketpair()
    inside, given = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as daemon, inside:
        daemon.bind(str(tmp_path / "s"))
        daemon.listen()
        ours.sendall(b"\0\0\0\1a")
        room = threading.Semaphore(0)
        serving = threading.Thread(target=serve, args=(theirs, str(tmp_path / "s"), room))
        serving.start()
        made, _ = daemon.accept()
        with made, given:
            assert b"\0\0\0\1a" == made.recv(100)
            ours.close()
            socket.send_fds(made, [b"\0\0\0\1b"], [given.fileno()])
        serving.join(30)
        inside.settimeout(0)
        assert b"" == inside.recv(1)  # else BlockingIOError
        assert room.acquire(blocking=False)
