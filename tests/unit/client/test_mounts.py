"""The opening of a sandbox with mounts, by a link that answers at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from leeward.client.mounts import Mount, open_with
from leeward.errors import Busy
from leeward.wire.replies import Reply


class FakeLink:
    """Notes the requests, and refuses the first *busy* openings."""

    def __init__(self, busy: int = 0) -> None:
        self.busy, self.seen = busy, list[str]()
        self.docks: socket.socket | None = None

    def close(self) -> None:
        if self.docks is not None:
            self.docks.close()

    def call(self, op: str, _fields: dict[str, Any], *, functions: Any = None, **_: object) -> tuple[Reply, list[int]]:
        self.seen.append(op)
        if op == "sandbox_dock":
            self.close()
            self.docks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            return Reply(1, {"dock": 1}, "", "", []), [theirs.detach()]

        def answer(_heard: Any) -> tuple[Reply, list[int]]:
            self.seen.append("answer")
            if self.busy:
                self.busy -= 1
                raise Busy("later", 0.001)
            return Reply(2, {"sandbox": "x"}, "", "", []), []

        got: tuple[Reply, list[int]] = answer(None) if functions is None else functions.wait(self, 2, answer)
        return got


def test_something_is_done_while_the_daemon_opens(tmp_path: Path) -> None:
    link = FakeLink()
    open_with(link, {}, [Mount(tmp_path, "/data")], None, lambda: link.seen.append("beside"))  # type: ignore[arg-type]
    link.close()

    assert ["sandbox_dock", "sandbox_open", "beside", "answer"] == link.seen


def test_it_is_done_once_however_often_the_daemon_is_asked(tmp_path: Path) -> None:
    link = FakeLink(busy=2)
    open_with(link, {}, [Mount(tmp_path, "/data")], None, lambda: link.seen.append("beside"))  # type: ignore[arg-type]
    link.close()

    assert 3 == link.seen.count("sandbox_open")
    assert 1 == link.seen.count("beside")


def test_its_error_leaves_no_descriptor(tmp_path: Path) -> None:
    def fails() -> None:
        raise OSError("no space")

    before, link = os.listdir("/proc/self/fd"), FakeLink()
    with pytest.raises(OSError, match="no space"):
        open_with(link, {}, [Mount(tmp_path, "/data")], None, fails)  # type: ignore[arg-type]
    link.close()

    assert before == os.listdir("/proc/self/fd")
    assert "answer" not in link.seen
