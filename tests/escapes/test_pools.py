"""
Escapes between the pools of one daemon: what one profile or environment shows or permits, from another; and more than
a quota says, by way of several pools.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit import packages
from kit.box import control
from kit.live_daemon import LiveDaemon
from leeward.errors import QueueTimeout, RequestRejected

BY_DAEMON = pytest.mark.no_single_lock("which pool serves a request is the daemon's to decide, before there is a job")

CONFIG = """\
pool_size = 2
queue_timeout = {patience}
[environments.other]
[profiles.open]
show = ["{shown}"]
loopback = true
max = 2
[users.{user}]
jobs = {jobs}
"""

#: Listens, says so, and then what comes.
LISTEN = """\
import socket
server = socket.create_server(("127.0.0.1", 8123))
print("listens", flush=True)
connection, _ = server.accept()
print(connection.recv(64).decode(), flush=True)
"""

CONNECT = """\
import socket
socket.create_connection(("127.0.0.1", 8123), 5).sendall(b"hello")
"""


def configured(folder: Path, shown: Path, *, jobs: int = 0, patience: float = 30.0) -> Path:
    path = folder / "c.toml"
    path.write_text(CONFIG.format(shown=shown, user=os.geteuid(), jobs=jobs, patience=patience))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def shown() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="leeward-pools-", dir=packages.outside_tmp()) as folder:
        Path(folder).chmod(0o755)
        Path(folder, "file").write_text("shown\n")
        yield Path(folder)


@pytest.fixture(scope="module")
def daemon(shown: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with LiveDaemon(folder, "--config", str(configured(folder, shown))) as daemon:
        yield daemon


@pytest.mark.smoke
@BY_DAEMON
def test_c226_cannot_see_files_of_another_pool(daemon: LiveDaemon, shown: Path) -> None:
    """
    Neither a plain job, a session or a sandbox, nor a job of another environment; and an environment's name is looked
    up, not opened.
    """
    look = f"print(open({str(shown / 'file')!r}).read())"
    with leeward.Sandbox(socket=daemon.socket, profile="open") as box, control():
        assert "shown\n\n" == box.execute(look).stdout_text

    with daemon.client() as client:
        refused = [client.execute(look), client.execute(look, environment="other")]
        with client.session() as session:
            refused.append(session.execute(look))
        for name in (str(shown), "../open", "open"):
            with pytest.raises(RequestRejected):
                client.execute(look, environment=name)
    with leeward.Sandbox(socket=daemon.socket) as box:
        refused.append(box.execute(look))
    with leeward.Sandbox(socket=daemon.socket, environment="other") as box:
        refused.append(box.execute(look))
    for result in refused:
        assert b"" == result.stdout
        assert "FileNotFoundError" in result.stderr_text or "PermissionError" in result.stderr_text


@BY_DAEMON
def test_c227_cannot_use_the_network_of_another_pool_or_sandbox(daemon: LiveDaemon) -> None:
    """A server in one sandbox of a profile with `loopback` is nobody else's to connect to."""
    with leeward.Sandbox(socket=daemon.socket, profile="open") as box:
        server = box.start(["python3", "-c", LISTEN])
        assert b"listens" in next(iter(server.read())).data
        with leeward.Sandbox(socket=daemon.socket, profile="open") as other:
            assert "ConnectionRefusedError" in other.execute(CONNECT).stderr_text
        with leeward.Sandbox(socket=daemon.socket) as plain:
            assert "PermissionError" in plain.execute(CONNECT).stderr_text
        with daemon.client() as client:
            assert "PermissionError" in client.execute(CONNECT, environment="other").stderr_text
        with control():
            assert box.execute(CONNECT).ok
            assert b"hello" in b"".join(chunk.data for chunk in server)


@BY_DAEMON
def test_c228_cannot_have_more_than_a_quota_by_several_pools(shown: Path, tmp_path: Path) -> None:
    """A sandbox in one pool, and a job in another, or in the daemon's own: one job at once is one in all of them."""
    for jobs, name in ((0, "free"), (1, "held")):
        folder = tmp_path / name
        folder.mkdir()
        config = configured(folder, shown, jobs=jobs, patience=0.5 if jobs else 30.0)
        with LiveDaemon(folder, "--config", str(config)) as daemon, daemon.client() as client, \
                leeward.Sandbox(socket=daemon.socket, profile="open") as box:
            # Its pools stand: their start isn't to be what is waited for.
            _patiently(lambda: client.execute("print(1)", environment="other"))
            _patiently(lambda: box.run(["true"]))
            if jobs:
                for environment in (None, "other"):
                    with pytest.raises(QueueTimeout, match="fitted into the quota"):
                        client.execute("print(1)", environment=environment)
            else:
                with control():
                    assert client.execute("print(1)").ok
                    assert client.execute("print(1)", environment="other").ok


def _patiently(call: Callable[[], leeward.Result]) -> None:
    """Do what needs a pool that may take longer to begin than a request waits."""
    while True:
        try:
            assert call().ok
            return
        except QueueTimeout:
            continue
