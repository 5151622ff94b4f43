"""
Terminals over connections: what a request may say of them, and how many there may be.

The processes are ordinary ones of this host: tests/kit/sandbox_stand.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import leeward
from kit.sandbox_stand import Stand
from leeward.daemon.sandboxes import live_sandboxes


@pytest.fixture
def stand() -> Iterator[Stand]:
    with Stand() as made:
        yield made


def test_a_users_terminals_are_bounded_over_all_sandboxes(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of one that has ended can be had again."""
    monkeypatch.setattr(live_sandboxes, "MOST_TERMINALS_OF_USER", 3)
    with leeward.Sandbox(socket=stand.socket) as one, leeward.Sandbox(socket=stand.socket) as other:
        kept = [one.terminal(["cat"]), other.terminal(["cat"]), one.terminal(["cat"])]
        for box in (one, other):
            with pytest.raises(leeward.Busy, match="3 terminals open"), box._connections.one() as connection:
                connection.call("process_start", {"sandbox": box.id, "argv": ["cat"], "terminal": [24, 80]}, retry_busy=False)
        assert b"" == one.run(["true"]).stdout
        kept[0].write("\x04")
        ended = kept[0].result()
        assert 0 == ended.exit_code
        assert b"x\r\n" == other.terminal("echo x").result().stdout


def test_a_terminal_can_be_written_and_resized(stand: Stand) -> None:
    """Its input stays open without being asked for, and its output is one stream."""
    with leeward.Sandbox(socket=stand.socket) as box:
        screen = box.terminal("stty size; read word; stty size >&2; exit $word", (7, 70))
        assert "7 70\r\n" == screen.read()[0].text
        assert screen.resize(8, 80)
        screen.write("3\n")
        got = screen.result()

    assert (3, "3\r\n8 80\r\n", "") == (got.exit_code, got.stdout_text, got.stderr_text)
