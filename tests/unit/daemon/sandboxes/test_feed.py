"""Input for a process's stdin."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from leeward.daemon.sandboxes.streams import TURN, Feed


def test_c350_a_process_that_reads_as_fast_as_the_daemon_writes_does_not_hold_the_loop(tmp_path: Path) -> None:
    """A file takes everything at once, so only the bound ends a turn. Each write is reported once."""
    calls: list[Any] = []
    watched: Any = SimpleNamespace(watch=lambda fd, events, call: calls.append(call), forget=lambda fd: calls.clear())
    with open(tmp_path / "stdin", "w+b") as file:
        child: Any = SimpleNamespace(stdin=file.fileno(), close_stdin=lambda: None)
        feed, taken = Feed(watched, child), []
        feed.write(b"a" * (2 * TURN + 5), taken.append)
        feed.write(memoryview(b"b" * TURN), taken.append)
        turns = 1
        while calls:
            assert os.fstat(file.fileno()).st_size == turns * TURN
            calls[0](0)
            turns += 1

        assert [2 * TURN + 5, TURN] == taken
        assert turns == 4
        assert b"a" * (2 * TURN + 5) + b"b" * TURN == os.pread(file.fileno(), 4 * TURN, 0)
