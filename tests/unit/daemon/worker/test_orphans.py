"""Dead processes that came to the daemon, while it has no descriptor to look for them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from kit import reactors
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


def test_what_dead_keepers_leave_is_looked_for_once_and_after_each_of_them_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many end together as there were sandboxes in a burst; one that ends while a look is due gets another one."""
    reactor, looks, asked = reactors.reactor(reactors.REFERENCE), list[float](), list[float]()
    found = iter((True, False, True))
    monkeypatch.setattr(orphans, "reap_orphans", lambda: looks.append(reactor.now()) or next(found))
    left = orphans.Orphans()

    def die(count: int) -> None:
        for _ in range(count):
            left.look_later(reactor)
        asked.append(reactor.now())

    die(1)
    reactor.after(orphans.LATER_S / 2, lambda: die(100))
    reactor.run(lambda: 3 == len(looks))  # the third one since there was no descriptor for all of the second

    assert asked[0] + orphans.LATER_S <= looks[0] + 0.001
    assert asked[1] + orphans.LATER_S <= looks[1] + 0.001
    assert looks[1] + orphans.AGAIN_S <= looks[2] + 0.001
    reactor.close()
