"""Dead processes that came to the daemon, while it has no descriptor to look for them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from leeward.daemon.worker import orphans


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_an_unreadable_proc_is_reported(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise OSError(error, os.strerror(error), path)

    monkeypatch.setattr("leeward.daemon.worker.orphans.os.listdir", refuse)

    assert not orphans.reap_orphans()


def test_another_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, "no", path)

    monkeypatch.setattr("leeward.daemon.worker.orphans.os.listdir", refuse)
    with pytest.raises(PermissionError):
        orphans.reap_orphans()


def test_a_file_that_can_not_be_opened_leaves_something_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.EMFILE, "no", path)

    monkeypatch.setattr("builtins.open", refuse)

    assert not orphans.reap_orphans()


def test_reaping_ends_when_no_init_is_left() -> None:
    assert orphans.reap_orphans()


@pytest.mark.parametrize("leads", [False, True])
def test_a_process_that_somebody_waits_for_stays_for_the_wait(leads: bool) -> None:
    """In our session, or in one of its own."""
    made = subprocess.Popen(["false"], start_new_session=leads)
    if leads:
        orphans.STARTED.add(made.pid)
    os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)
    assert orphans.reap_orphans(alone=True)

    assert 1 == made.wait()


def test_a_number_that_is_no_childs_any_more_is_forgotten() -> None:
    orphans.STARTED.add(1)
    assert orphans.reap_orphans()

    assert 1 not in orphans.STARTED


def test_one_with_a_name_that_is_no_text_is_reaped() -> None:
    """A job chooses its processes' names, which stay when they are dead."""
    name = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff\\rState:\\tR')"
    made = subprocess.Popen([sys.executable, "-c", name], start_new_session=True)
    os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)

    assert orphans.reap_orphans(alone=True)
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOHANG)
    made.wait()
