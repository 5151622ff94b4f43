"""Whom the daemon opens folders for, and a connection's docks."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.sandboxes.terms import Launch, SandboxTerms
from leeward.daemon.serving import sandbox_calls
from leeward.daemon.serving.sandbox_calls import MOST_DOCKS, Docks
from leeward.daemon.worker.opener import MOST_OF_USER, MOST_ORDERS, Opener
from leeward.errors import BadRequest, Busy, Forbidden
from leeward.spec.folders import Folder


class Asked:
    def cancel(self) -> None:
        return


class FakeDesk:
    """Notes what the opener is asked for."""

    view = SandboxTerms(Launch()).view

    def __init__(self) -> None:
        self.opener = self.reactor = self.closer = self
        self.orders: list[Any] = []
        self.closed: list[socket.socket] = []

    def open(self, _dock: int, rows: Any, _user: int, _opened: Any) -> Asked:
        self.orders.append(rows)
        return Asked()

    def close(self, sock: socket.socket) -> None:
        self.closed.append(sock)
        sock.close()


@pytest.mark.parametrize(("daemon", "client", "served"), [(1000, 1000, True), (0, 0, True), (0, 1000, True),
                                                          (1000, 1001, False), (1000, 0, False)])
def test_another_users_folders_are_roots_daemons_alone(monkeypatch: pytest.MonkeyPatch, daemon: int, client: int, *,
                                                       served: bool) -> None:
    """A sandbox would have them with the daemon's user's rights, and not with its client's."""
    desk, (dock, there) = FakeDesk(), socket.socketpair()
    there.close()
    monkeypatch.setattr(os, "geteuid", lambda: daemon)

    def opening() -> sandbox_calls.FolderOpening:
        return sandbox_calls.FolderOpening(desk, dock, [Folder("/a", "/data")], (client, client),  # type: ignore[arg-type]  # a fake
                                     lambda _mounts: lambda: None, lambda _why: None)

    if served:
        asked = opening()
        assert not desk.closed  # the opener's end isn't the last one
        asked.cancel()
    else:
        with pytest.raises(Forbidden, match="runs as user 1000"):
            opening()
    assert served == (1 == len(desk.orders))
    assert [dock] == desk.closed  # whatever became of it


def closed_by(sock: socket.socket) -> None:
    sock.close()


def test_a_dock_is_good_for_one_request() -> None:
    held: list[int] = []
    docks = Docks(held.append, closed_by)
    made = [docks.make() for _ in range(MOST_DOCKS)]
    with pytest.raises(Busy):
        docks.make()
    number, theirs = made[0]
    assert MOST_DOCKS == sum(held)
    with docks.take(number) as ours:
        os.write(theirs, b"x")
        assert b"x" == ours.recv(9)
    for none in (number, 0, 99):
        with pytest.raises(BadRequest, match="no dock"):
            docks.take(none)
    docks.make()
    docks.close()
    assert 0 == sum(held)
    assert b"" == os.read(made[1][1], 1)
    for _, fd in made:
        os.close(fd)


def test_c396_a_user_has_a_bounded_number_of_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of one user's that never answers leaves places to others."""
    monkeypatch.setattr(Opener, "_send", lambda *_: None)
    reactor = ReferenceReactor()
    opener = Opener(reactor, list)

    def ask(user: int) -> None:
        opener.open(0, [], user, lambda _what, _found: None)

    for user in (1000, 1001, 1002):
        for _ in range(MOST_OF_USER):
            ask(user)
        with pytest.raises(Busy, match=f"of user {user}"):
            ask(user)
    for _ in range(MOST_ORDERS - 3 * MOST_OF_USER):
        ask(0)
    with pytest.raises(Busy, match=f"{MOST_ORDERS} sandboxes are"):
        ask(0)
    opener.close()
    ask(1000)
    opener.close()
    reactor.close()
