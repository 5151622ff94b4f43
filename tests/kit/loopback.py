"""Servers of HTTP on this host's loopback, for as long as a test wants them, and ports for those of other programs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def free_port() -> int:
    """
    A port of 127.0.0.1 on which no program listens now. For a minute the kernel gives it to nobody who asks for any port,
    since it waits for late packets of a connection (TIME_WAIT). Who asks for this one by SO_REUSEADDR has it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()
        port: int = server.getsockname()[1]
        return port


class Quiet(BaseHTTPRequestHandler):
    """A handler without a log."""

    def log_message(self, *_: object) -> None: ...


class _Files(Quiet, SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of a server whose requests *handler* answers, each in a thread."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def serving_files(folder: Path) -> AbstractContextManager[int]:
    """The port of a server of what is in *folder*."""
    return serving(partial(_Files, directory=str(folder)))
