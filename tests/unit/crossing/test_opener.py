"""What the opener keeps of what a client gave: nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from leeward.crossing import opener
from leeward.errors import BadRequest
from leeward.spec.folders import Folder


@pytest.mark.parametrize("case", ["a file", "another place", "the kernel's", "fewer", "more"])
def test_a_refused_order_leaves_no_descriptor(tmp_path: Path, case: str) -> None:
    """The answer goes out after that: a client that has heard of its refusal can unmount what it had offered."""
    file = tmp_path / "file"
    file.write_text("")
    path = {"a file": str(file), "another place": "/", "the kernel's": "/proc"}.get(case, str(tmp_path))
    wanted = [Folder(str(tmp_path) if "another place" == case else path, "/data")] * 2
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here:
        given = [os.open(path, os.O_PATH) for _ in range({"fewer": 1, "more": 3}.get(case, 2))]
        socket.send_fds(here, [b"1"], given)
        for fd in given:
            os.close(fd)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(BadRequest):
            opener._clone(there.detach(), wanted, [], root=True)
        assert before - 1 == len(os.listdir("/proc/self/fd"))  # the socket itself is closed, too
