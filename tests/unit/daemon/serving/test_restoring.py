"""Sandboxes of an earlier daemon: one that can't be used costs itself alone, and never the start."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from leeward._native.memfd import memory_file
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.daemon.sandboxes.sleep_folder import Asleep, SleepFolder
from leeward.daemon.serving.restoring import restore

NAMES = [letter * 26 for letter in "abcd"]


@pytest.mark.parametrize("record", [1, {}, {"made_on": 1}, {"made_on": {"kernel": "another"}}])
def test_what_cannot_be_used_is_removed(tmp_path: Path, record: Any) -> None:
    reactor, server = Reactor(), Mock()
    server.desk.last_uses = LastUses(reactor)
    server.reactor, server.config.sleep_size = reactor, 1 << 20
    tmp_path.chmod(0o700)
    restore(server, str(tmp_path / "sleep"), "/socket")
    folder: SleepFolder = server.desk.sleepers
    said: list[object] = []
    for name in NAMES:
        what = Asleep({}, memory_file("files"), 0)
        folder.put(name, 7, record, what, said.append)
        what.close()
    while len(said) < len(NAMES):
        reactor.turn(1.0)
    folder.close()
    restore(server, str(tmp_path / "sleep"), "/socket")
    folder = server.desk.sleepers
    server.desk.restore.assert_not_called()
    folder._writer.order(partial(os.listdir, folder._folder), said.append)  # after the removals
    while len(said) == len(NAMES):
        reactor.turn(1.0)
    assert ["lock"] == said[-1]
    folder.close()
    reactor.close()
