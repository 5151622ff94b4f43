"""A server in a sandbox whose answers and frames of WebSockets are hostile; its source goes there as it is."""

import base64
import contextlib
import hashlib
import os
import random
import socket
import threading

FRAMES = (
    b"\x81\x02hi", b"\x82\x01\x00", b"\x01\x01a\x80\x01b", b"\x80\x01b", b"\x01\x01a\x81\x01b", b"\x89\x02hi", b"\x8a\x00",
    b"\x89\x7e\x00\x80" + bytes(128), b"\x88\x02\x03\xe8", b"\x88\x01\x03", b"\x88\x02\x03\xed", b"\x88\x00", b"\xf1\x00",
    b"\x83\x00", b"\x81\x01\xff", b"\x81\x82\x00\x00\x00\x00hi", b"\x82\x7e\xff\xff", b"\x82\x7f" + b"\xff" * 8, b"",
    b"\x82\x7f\x00\x00\x00\x00\x00\x40\x00\x01" + bytes(4096), b"\x82\x7e\x00\x01x", b"\x81")
HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS = (HEAD + b"Content-Length: 2\r\n\r\nok", HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
           HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", HEAD + b"\r\nuntil the end",
           HEAD + b"Set-Cookie: a=b; Domain=localhost\r\nAlt-Svc: x\r\nContent-Length: 0\r\n\r\n", HEAD + b"a\x00: b\r\n\r\n",
           HEAD + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
           b"HTTP/1.1 100 Go on\r\n\r\n" * 50 + HEAD + b"Content-Length: 0\r\n\r\n", b"SSH-2.0-x\r\n", b"",
           b"HTTP/1.1 101 No\r\nUpgrade: x\r\n\r\n", b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nabcde",
           b"HTTP/0.9 999\r\n\r\n")


def accepts(head: bytes) -> bytes:
    """The answer that opens a WebSocket; b"" if nobody asks for one."""
    keys = [line.partition(b":")[2].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:")]
    if not keys:
        return b""
    proof = base64.b64encode(hashlib.sha1(keys[0] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest())
    return b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + proof + b"\r\n\r\n"


def serve(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(10)
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(65536)
            if not piece:
                return
            head += piece
        opened = accepts(head)
        said = random.choices((*FRAMES, os.urandom(64)), k=random.randrange(4)) if opened else [random.choice(ANSWERS)]
        connection.sendall(opened + b"".join(said))
        if opened:
            connection.recv(65536)


def listen(port: int) -> None:
    server = socket.create_server(("127.0.0.1", port), backlog=64)
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
