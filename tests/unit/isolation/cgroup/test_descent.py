"""A hunt ends what it is to end, and knows soon when it can't."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from leeward.isolation.cgroup import descent, group
from leeward.isolation.cgroup.watch import key_of

#: Its first thread ends; the other one says so, and goes on.
_HEADLESS = """
import ctypes, os, threading, time
def go_on():
    while "Z" != open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0]:
        time.sleep(0.001)
    os.write(1, b"ended")
    time.sleep(1000)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall(60 if "x86_64" == os.uname().machine else 93, 0)
"""


def started(code: str, says: bytes) -> subprocess.Popen[bytes]:
    made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert made.stdout is not None
    assert says == made.stdout.read(len(says))
    return made


@pytest.fixture
def target() -> Iterator[subprocess.Popen[bytes]]:
    with started("import time\nprint('on', flush=True)\ntime.sleep(1000)", says=b"on") as made:
        yield made
        made.kill()


def hunted(root: int) -> tuple[bool, float]:
    """Whether *root* was ended by a hunt that wasn't hopeless, and the seconds that it took."""
    began, hunt = time.monotonic(), descent.Hunt(os.getpid(), key_of(root))
    while not hunt.step() and not hunt.hopeless:
        time.sleep(hunt.pause)
    return not hunt.hopeless, time.monotonic() - began


def test_a_process_is_ended(target: subprocess.Popen[bytes]) -> None:
    over, _ = hunted(target.pid)

    assert over
    assert -9 == target.wait()


def test_a_process_whose_first_thread_has_ended_lives_and_is_ended() -> None:
    with started(_HEADLESS, says=b"ended") as headless:
        assert descent.is_left(os.getpid(), key_of(headless.pid))
        over, _ = hunted(headless.pid)

        assert over
        assert -9 == headless.wait()


def test_a_stranger_with_the_number_of_one_that_has_ended_lives(target: subprocess.Popen[bytes]) -> None:
    """Numbers are given again, in seconds where a program forks, and this one leads a session, too."""
    pid, began = key_of(target.pid)
    with subprocess.Popen(["sleep", "1000"]) as other:  # of our session, so not a child of the init that is found
        for root in ((pid, -1), (pid, began - 1)):
            assert not descent.is_left(other.pid, root)
            assert descent.Hunt(other.pid, root).step()
        assert target.poll() is None
        other.kill()
    ended = os.pidfd_open(target.pid)
    assert (pid, began) == descent.living(pid, ended)
    target.kill()
    os.waitid(os.P_PIDFD, ended, os.WEXITED | os.WNOWAIT)
    assert descent.living(pid, ended) is None
    os.close(ended)


def test_a_process_that_is_continued_again_and_again_is_given_up_soon(target: subprocess.Popen[bytes],
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """As another one of its sandbox can. It doesn't hold a hunt for as long as one that waits for a processor."""
    def stop_and_continue(pid: int, is_meant: Callable[[], bool], number: int = signal.SIGKILL) -> None:
        group.kill(pid, is_meant, number)
        group.kill(pid, is_meant, signal.SIGCONT)

    monkeypatch.setattr(descent, "kill", stop_and_continue)
    over, seconds = hunted(target.pid)

    assert not over
    assert seconds < descent._SLOW_S / 2
    assert -9 == target.wait()


def test_walks_that_take_a_second_of_the_processor_are_enough(target: subprocess.Popen[bytes],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of many processes costs the loop as much for each walk."""
    times = iter(range(100))
    monkeypatch.setattr(descent, "pending_of", lambda _: 1 << 18)  # SIGSTOP waits
    monkeypatch.setattr(descent.Hunt, "_is_still", lambda *_: False)
    monkeypatch.setattr(time, "thread_time", lambda: 0.25 * next(times))
    walks = 0
    hunt = descent.Hunt(os.getpid(), key_of(target.pid))
    while not hunt.step() and not hunt.hopeless:
        walks += 1

    assert 3 == walks
