"""What can't be done for want of descriptors, where sandboxes write to a disk: it costs a try, and no worker waits on."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kit import reactors
from leeward._native import mounts
from leeward.daemon.worker.layers import HandedMounts
from leeward.daemon.worker.uppers import Uppers
from leeward.errors import LeewardError

SHORT = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(("where", "name"), [(subprocess, "Popen"), (os, "pidfd_open"), (os, "rename")])
def test_what_can_not_be_removed_now_is_by_the_next_removal(tmp_path: Path, where: Any, name: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    reactor = reactors.reactor(reactors.REFERENCE)
    uppers = Uppers(reactor, Mock(), str(tmp_path / "uppers"))
    first, second = (uppers.new((os.geteuid(), os.getegid())) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(where, name, Mock(side_effect=SHORT))
        first.close()
    second.close()
    first.close()
    reactor.run(lambda: not os.listdir(tmp_path / "uppers" / os.path.basename(os.path.dirname(first.path)) / "gone"))
    assert not {first.path, second.path} & {os.path.join(os.path.dirname(first.path), each)
                                            for each in os.listdir(os.path.dirname(first.path))}
    reactor.run(lambda: uppers._process is None)
    reactor.close()


def test_a_worker_is_told_why_an_image_has_no_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that is found out once the mount of its folder has come, which is closed then."""
    answers, heard = list[Callable[..., None]](), list[Any]()
    upper: Any = Mock(mount=answers.append)
    monkeypatch.setattr(mounts, "copy", Mock(side_effect=SHORT))
    opener: Any = Mock()
    HandedMounts(opener, ["/layer"], Mock()).make((1, 1), upper, heard.append)
    given = os.open("/", os.O_PATH)
    answers[0]([given], ())
    assert [LeewardError] == list(map(type, heard))
    assert "Too many open files" in str(heard[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given)
    with pytest.raises(OSError, match="Too many open files"):
        HandedMounts(opener, ["/layer"], None).make((1, 1), None, heard.append)
