"""The start of a zygote: what it begins with, and that nothing is left of one that can't or needn't be."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kit import points
from kit.unclosed import close_garbage
from leeward.daemon.worker import zygote_start
from leeward.daemon.worker.zygote_start import StartedZygote
from leeward.isolation.channel import Channel
from leeward.isolation.plan import ZygotePlan

PLAN = ZygotePlan(import_path=("/nowhere",), preload=(), bare=True, executable=sys.executable,
                  environment=(("A", "b"),))

#: In place of the zygote: says what it finds, and waits.
ENTRY = """
import os
def ours(fd):
    try: return os.get_inheritable(fd) or fd == {control}
    except OSError: return False
print(os.getcwd(), os.getsid(0) == os.getpid(), sys.path[0], sys.flags.no_site,
      sorted(os.environ.keys() - set(["LC_CTYPE"])), [fd for fd in range(3, 1000) if ours(fd)] == [{control}],
      len(os.read({control}, 65536)) > 0, os.read(0, 1), flush=True)
os.read({control}, 1)
"""


def descriptors() -> list[str]:
    # The folder's own is none of them.
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Every process that is begun; by subprocess, since no feature of the kernel is needed for what is tested here."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(plan: ZygotePlan, control: int) -> tuple[subprocess.Popen[bytes], int]:
        flags = ["-S"] if plan.bare else []
        made.append(subprocess.Popen([plan.executable, *flags, "-c", zygote_start._BOOTSTRAP], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
                                     env=dict(plan.environment), pass_fds=[control], start_new_session=True))
        return made[-1], control

    with points.filled("zygote.begin", begin), points.filled("zygote.entry",
                                                             lambda control: ENTRY.format(control=control)):
        yield made


def test_a_zygote_begins_with_its_channel_and_plan(begun: list[subprocess.Popen[bytes]]) -> None:
    """And no other state of the daemon: no folder, session, environment or descriptor."""
    close_garbage()
    before = descriptors()
    hatched = StartedZygote(PLAN)
    try:
        assert hatched.process.stdout is not None
        found = hatched.process.stdout.readline()
        assert len(before) + 2 == len(descriptors())  # the channel, and what it says
    finally:
        hatched.end()

    assert b"/ True /nowhere 1 ['A'] True True b''\n" == found


def test_an_unneeded_zygote_leaves_no_process_or_descriptor(begun: list[subprocess.Popen[bytes]]) -> None:
    """Neither process nor descriptor."""
    close_garbage()
    before = descriptors()
    hatched = StartedZygote(PLAN)
    hatched.end()

    assert before == descriptors()
    assert -signal.SIGKILL == hatched.process.returncode


def test_a_zygote_that_cannot_be_started_leaves_no_process_or_descriptor(begun: list[subprocess.Popen[bytes]]) -> None:
    """Its interpreter doesn't exist."""
    close_garbage()
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        StartedZygote(ZygotePlan(import_path=(), preload=(), bare=True, executable="/nowhere/python",
                           environment=()))

    assert before == descriptors()


def test_a_zygote_that_cannot_get_its_plan_leaves_no_process_or_descriptor(begun: list[subprocess.Popen[bytes]],
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan doesn't go through the channel."""
    def refuse(_channel: Channel, _data: bytes) -> None:
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(Channel, "send_raw", refuse)
    close_garbage()
    before = descriptors()
    with pytest.raises(OSError, match="no room"):
        StartedZygote(PLAN)

    assert before == descriptors()
    assert [-signal.SIGKILL] == [process.returncode for process in begun]


def test_a_zygote_that_ends_at_once_can_still_be_heard(monkeypatch: pytest.MonkeyPatch,
                                                       begun: list[subprocess.Popen[bytes]]) -> None:
    """Before it has read what it is to run; its last words are there for who waits for it."""
    monkeypatch.setattr(zygote_start, "_BOOTSTRAP", "print('no room'); raise SystemExit(3)")
    with points.filled("zygote.entry", lambda _: "#" * (1 << 20)):  # more than a pipe holds
        hatched = StartedZygote(PLAN)
    try:
        assert hatched.process.stdout is not None
        assert b"no room\n" == hatched.process.stdout.read()
        assert 3 == hatched.process.wait()
    finally:
        hatched.end()
