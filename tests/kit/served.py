"""`leeward serve` beside a daemon, and requests to it by plain HTTP."""

from __future__ import annotations

import copy
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from kit.far_network import FarNetwork
from kit.live_daemon import PATIENCE, command, environment
from leeward.apps.serve.tokens import TenantQuota, TokenFile


class Served:
    """
    The server, from ready to its end.

    Attributes:
        url: where it listens; on this host's loopback, unless that is in a *far* network.
        token: of the tenant `one`.
    """

    def __init__(self, daemon_socket: Path, folder: Path, *arguments: str, far: FarNetwork | None = None,
                 **env: str) -> None:
        self.socket, self._arguments, self._env = daemon_socket, arguments, env
        self._enter: tuple[str, ...] = far.enter if far else ()
        self._address = far.address if far else "127.0.0.1"
        self._said: Future[str] | None = None
        self.tokens = folder / "tokens" / "serve.json"
        self.token = self.new_token("one")

    def again(self) -> Served:
        """Another server with the same tokens."""
        return copy.copy(self)

    def revoke(self, name: str) -> None:
        subprocess.run(command("serve", "token", "revoke", name, "--tokens", str(self.tokens)), env=environment(), check=True,
                       timeout=60)

    def new_token(self, name: str, *options: str) -> str:
        made = subprocess.run(command("serve", "token", "create", name, "--tokens", str(self.tokens), *options),
                              env=environment(), capture_output=True, text=True, check=True, timeout=60)
        return made.stdout.strip()

    def new_tenant(self, name: str, **quota: int) -> str:
        """The token of a new tenant with this quota, and more requests in a second than a test makes."""
        return TokenFile(str(self.tokens)).create(name, TenantQuota(**{"rate": 100_000, **quota}))

    def __enter__(self) -> Served:
        self.process = subprocess.Popen(
            [*self._enter, *command("serve", "--listen", f"{self._address}:0", "--tokens", str(self.tokens),
                                    "--socket", str(self.socket), *self._arguments)],
            env=environment(**self._env), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert " at http" in line, line + self.process.stderr.read()
        self.url = line.split()[-1]
        self.address = urlsplit(self.url).hostname or "", urlsplit(self.url).port or 0
        return self

    def ended_by(self, connection: socket.socket) -> bytes:
        """What comes on a connection until the server ends it."""
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.said = self.end()
        assert "failed" not in self.said, self.said

    def drain(self) -> None:
        """Read what it logs as it comes: a pipe has no room for a long run's, and lines that nobody reads are lost."""
        assert self.process.stderr is not None
        self._said = ThreadPoolExecutor(1).submit(self.process.stderr.read)

    def end(self) -> str:
        """End it; returns what it has logged."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        if self._said is not None:
            return self._said.result(PATIENCE)
        _, said = self.process.communicate(timeout=PATIENCE)
        return said

    @contextmanager
    def asked(self, method: str, path: str, body: object = None, token: str | None = None,
              **headers: str) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request, before its body is read; `token` "" sends none."""
        by = http.client.HTTPSConnection if self.url.startswith("https:") else http.client.HTTPConnection
        connection = by(*self.address, timeout=PATIENCE)
        sent = {"X-API-KEY": self.token if token is None else token, **{
            name.replace("_", "-"): value for name, value in headers.items()}}
        if not sent["X-API-KEY"]:
            del sent["X-API-KEY"]
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, sent)
        try:
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: object = None, token: str | None = None, **headers: str) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        with self.asked(method, path, body, token, **headers) as response:
            content = response.read()
            return response.status, json.loads(content) if content else None

    def raw(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE)


def client_python(name: str) -> str:
    """The interpreter with the clients of *name*, in the environment that ./dev makes for them."""
    return os.path.join(Path(__file__).resolve().parents[2], f".venv-client-{name}", "bin", "python")
