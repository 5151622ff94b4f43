"""The watch when the daemon itself runs short: a few missed looks are borne, then the job ends."""

from __future__ import annotations

import errno
import os

import pytest

from leeward.isolation.cgroup import none, watch
from leeward.spec.limits import Limits
from leeward.spec.outcome import Limit


def _leaf(monkeypatch: pytest.MonkeyPatch, code: int) -> none.NoneLeaf:
    def look(init: watch.Key, beside: object) -> tuple[list[watch.ProcessSample], int]:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(watch, "look", look)
    return none.NoneLeaf((0,), Limits())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_job_that_cannot_be_watched_ends_after_a_while(monkeypatch: pytest.MonkeyPatch, code: int):
    leaf = _leaf(monkeypatch, code)

    assert [None] * none.MOST_MISSED == [leaf.tick(1) for _ in range(none.MOST_MISSED)]
    assert Limit.MEMORY is leaf.tick(1)


def test_any_other_error_is_raised(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(OSError, match="Permission"):
        _leaf(monkeypatch, errno.EACCES).tick(1)
