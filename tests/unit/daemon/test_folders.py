"""
Whom the daemon opens folders for, and a connection's docks.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from leeward.daemon.serving import folders
from leeward.daemon.serving.docks import MOST, Docks
from leeward.errors import BadRequest, Busy, Forbidden
from leeward.sandboxes.terms import Launch, SandboxTerms
from leeward.spec.folders import Folder


class Asked:
    def cancel(self) -> None:
        return


class FakeDesk:
    """
    Notes what the opener is asked for.
    """

    view = SandboxTerms(Launch()).view

    def __init__(self) -> None:
        self.opener = self
        self.orders: list[Any] = []

    def open(self, _dock: int, rows: Any, _opened: Any) -> Asked:
        self.orders.append(rows)
        return Asked()


@pytest.mark.parametrize(("daemon", "client", "served"), [(1000, 1000, True), (0, 0, True), (0, 1000, True),
                                                          (1000, 1001, False), (1000, 0, False)])
def test_another_users_folders_are_roots_daemons_alone(monkeypatch: pytest.MonkeyPatch, daemon: int, client: int, *,
                                                       served: bool) -> None:
    """
    A sandbox would have them with the daemon's user's rights, and not with its client's.
    """
    desk, dock = FakeDesk(), os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(os, "geteuid", lambda: daemon)

    def opening() -> None:
        folders.FolderOpening(desk, dock, [Folder("/a", "/data")], (client, client),  # type: ignore[arg-type]  # a fake
                              lambda _mounts: lambda: None, lambda _why: None)

    if served:
        opening()
    else:
        with pytest.raises(Forbidden, match="runs as user 1000"):
            opening()
    assert served == (1 == len(desk.orders))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(dock)  # whatever became of it


def test_a_dock_is_good_for_one_request() -> None:
    docks = Docks()
    made = [docks.make() for _ in range(MOST)]
    with pytest.raises(Busy):
        docks.make()
    number, theirs = made[0]
    with socket.socket(fileno=docks.take(number)) as ours:
        os.write(theirs, b"x")
        assert b"x" == ours.recv(9)
    for none in (number, 0, 99):
        with pytest.raises(BadRequest, match="no dock"):
            docks.take(none)
    docks.make()
    docks.close()
    assert b"" == os.read(made[1][1], 1)
    for _, fd in made:
        os.close(fd)
