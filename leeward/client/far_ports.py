"""
Servers in sandboxes, for a client on another machine: at a Unix socket each connection asks the daemon for one of them, and
goes on with that.

Runs in:   any Python on the daemon's machine, as text that ssh brings (over_ssh.py), so with the standard library alone.
           A call of `main` is put behind it.
Bounds:    MOST connections at once; further ones wait in the kernel's queue.
Ends:      with its standard input, and so with the client, however that ends.

The first frame of a connection is the request `sandbox_connect`, which goes to the daemon as it is. Its answer comes back,
and then what the server says whose socket came with it.
"""

from __future__ import annotations

import array
import os
import shutil
import socket
import sys
import tempfile
import threading

MOST, PIECE = 64, 1 << 16


def whole(source: socket.socket) -> bytes:
    """A frame; shorter at the end of the stream."""
    found, size = b"", 4
    while len(found) < size:
        piece = source.recv(size - len(found))
        if not piece:
            break
        found += piece
        if len(found) == 4:
            size = 4 + min(int.from_bytes(found, "big"), PIECE)
    return found


def copy(source: socket.socket, to: socket.socket) -> None:
    try:
        while True:
            data = source.recv(PIECE)
            if not data:
                to.shutdown(socket.SHUT_WR)
                return
            to.sendall(data)
    except OSError:
        for each in (source, to):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def serve(near: socket.socket, far: str, room: threading.Semaphore) -> None:
    try:
        with near, socket.socket(socket.AF_UNIX) as daemon:
            daemon.connect(far)
            daemon.sendall(whole(near))
            first, rights, _, _ = daemon.recvmsg(1, socket.CMSG_SPACE(4))
            found = array.array("i")
            for _, _, data in rights:
                found.frombytes(data)
            with socket.socket(fileno=found[0]) if found else near as server:
                size = first + daemon.recv(3, socket.MSG_WAITALL)
                near.sendall(size + daemon.recv(min(int.from_bytes(size, "big"), PIECE), socket.MSG_WAITALL))
                daemon.close()
                if found:
                    server.setblocking(True)
                    up = threading.Thread(target=copy, args=(near, server), daemon=True)
                    up.start()
                    copy(server, near)
                    up.join()
    except OSError:
        pass  # the client sees the end
    finally:
        room.release()


def accept(listener: socket.socket, far: str) -> None:
    room = threading.Semaphore(MOST)
    while True:
        room.acquire()
        near, _ = listener.accept()
        threading.Thread(target=serve, args=(near, far, room), daemon=True).start()


def main(far: str) -> None:
    """Print the path of the socket, and serve there; *far* is the daemon's."""
    folder = tempfile.mkdtemp(prefix="leeward-ports-")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.join(folder, "s"))
            listener.listen(MOST)
            threading.Thread(target=accept, args=(listener, far), daemon=True).start()
            print(listener.getsockname(), flush=True)
            sys.stdin.read()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

