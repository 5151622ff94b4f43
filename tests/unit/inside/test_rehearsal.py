"""The rehearsal's stage: what goes on it goes nowhere, and all is put back."""

from __future__ import annotations

import linecache
import os
import sys

import pytest

from leeward.inside import main
from leeward.spec.job import Job
from leeward.wire import job_frames as wire


def test_the_rehearsals_frame_is_the_daemons():
    assert wire.job_frame(Job(code=main.CODE)) == main.FRAME


def test_a_rehearsals_output_fits_into_the_smallest_pipe():
    """Nobody reads the scratch pipe: frame, output, traceback and reply must not fill a page."""
    assert len(main.FRAME) + 4 * len(main.CODE) < 4096


def test_output_on_the_stage_goes_nowhere_else(capfd: pytest.CaptureFixture[str]):
    with main.stage() as (read, _):
        os.write(1, b"out")
        os.write(2, b"err")
        assert b"outerr" == os.read(read, 100)
    os.write(1, b"after")

    assert ("after", "") == capfd.readouterr()


def test_a_failed_rehearsal_restores_all_state(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linecache, "cache", {"kept": (1, None, ["x"], "kept")})
    descriptors = sorted(os.listdir("/proc/self/fd"))
    before = sys.modules["__main__"], list(sys.argv), list(sys.path)

    def go_wrong() -> None:
        with main.stage():
            sys.modules["__main__"] = sys
            sys.argv[:] = ["changed"]
            sys.path.insert(0, "changed")
            linecache.cache["<string>"] = (1, None, ["x"], "<string>")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        go_wrong()

    assert before == (sys.modules["__main__"], sys.argv, sys.path)
    assert ["kept"] == list(linecache.cache)
    assert descriptors == sorted(os.listdir("/proc/self/fd"))
