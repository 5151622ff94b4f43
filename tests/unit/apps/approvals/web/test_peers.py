"""Which processes the operator's socket hears."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.apps.approvals.web import listening
from leeward.spec import peers as processes


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        yield made


def test_a_process_of_the_same_namespaces_is_the_hosts(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as made:
            assert listening.is_hosts(made)


@pytest.mark.parametrize("kind", ["pid", "net"])
def test_one_of_another_namespace_is_not(listener: socket.socket, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = processes._namespace
    monkeypatch.setattr(processes, "_namespace", lambda pid, asked: real(pid, asked) if "self" == pid or kind != asked
                        else (0, 0))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as made:
            assert not listening.is_hosts(made)


def test_one_of_another_user_is_not(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as made:
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)
            assert not listening.is_hosts(made)


def test_one_that_has_gone_is_not(listener: socket.socket) -> None:
    """Another process may get its pid; the connection may be a child's of it."""
    with socket.socket(socket.AF_UNIX) as client:
        child = os.fork()
        if not child:
            client.connect(listener.getsockname())
            os._exit(0)
        os.waitpid(child, 0)
        with listener.accept()[0] as made:
            assert not listening.is_hosts(made)


def test_without_pidfds_of_peers_the_process_with_the_pid_counts(listener: socket.socket,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """As before Linux 6.5."""
    monkeypatch.setattr(processes, "_SO_PEERPIDFD", 9999)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as made:
            assert listening.is_hosts(made)
