"""
What the kernel counts for all processes of a user together. Catalogue cases 259 and 260.

The workers of an ordinary user's daemon have one user id. What can't be kept apart there is in docs/decisions/0118, and
in test_successive_jobs.py.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from kit.attack import PRELUDE, within
from kit.box import Box, control
from kit.running import running
from leeward.daemon.pool import confinement

#: Watches that all jobs of a test together get; a host's are millions.
GRANTED = 1000

#: Makes watches by numbers and files: a watch stays when its number is another file's, as long as any has the file.
#: Then it says how many there are, and why there are no more.
WATCHES = """
import select
files = [os.eventfd(0) for _ in range(20)]
polls = [select.epoll() for _ in range(10)]
made, why = 0, ""
try:
    for file in files:
        for number in range(100, 140):
            os.dup2(file, number)
            for poll in polls:
                poll.register(number, select.EPOLLIN)
                made += 1
except OSError as error:
    why = errno.errorcode[error.errno]
tell([made, why])
"""
ALL_OF_THEM = 20 * 40 * 10


@pytest.fixture(params=["none", "counted"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Box]]:
    """
    Makes sandboxes of two workers, as an ordinary user's daemon has them, where all jobs get GRANTED watches: without
    controllers, and as if the best driver of this machine counted memory.
    """
    monkeypatch.setattr(confinement.rlimits, "granted_watches", lambda: GRANTED)
    monkeypatch.setattr(confinement, "of_one_user", lambda: True)
    with contextlib.ExitStack() as stack:
        def make(*locks: str, whole: bool = False) -> Box:
            settings = {"cgroup": "none"} if "none" == request.param else {}
            return stack.enter_context(Box(None if whole else locks, pool_size=2, **settings))
        yield make


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c259_cannot_take_the_epoll_watches_of_others(few: Callable[..., Box]) -> None:
    """A job has half of them, and one beside it has half of the rest; nothing is denied that isn't a watch."""
    with control():
        assert [ALL_OF_THEM, ""] == within(few(), WATCHES)

    for box in (few(whole=True), few("seccomp")):
        with running(box, (PRELUDE + WATCHES + "signal.pause()").encode()) as greedy:
            made, why = json.loads(greedy.said)
            beside = box.run(PRELUDE + WATCHES)

        assert (GRANTED // 2, "ENOSPC") == (made, why)
        assert [GRANTED // 4, "ENOSPC"] == json.loads(beside.stdout)
        assert {} == beside.denied


@pytest.mark.lock("seccomp", beside=("mounts",), because="a job is charged from when the daemon has its file system on")
def test_c260_cannot_have_memory_by_watches() -> None:
    """What the kernel keeps for them is in no resident set, so without controllers they are charged by their number."""
    many = PRELUDE + WATCHES.replace("range(20)", "range(40)")

    def more(box: Box) -> int:
        with_them, without_them = box.run(many), box.run(many.replace("range(40)", "range(0)"))
        assert [[2 * ALL_OF_THEM, ""], [0, ""]] == [json.loads(got.stdout) for got in (with_them, without_them)]
        return with_them.memory_peak - without_them.memory_peak

    with Box(cgroup="none") as box, Box(("seccomp", "mounts"), cgroup="none") as alone, Box((), cgroup="none") as loose:
        with control():
            assert more(loose) < 2 * ALL_OF_THEM * 128
        assert more(box) > 2 * ALL_OF_THEM * 200
        assert more(alone) > 2 * ALL_OF_THEM * 200
