"""The watch when the daemon itself runs short: a few missed looks are borne, then the job ends."""

from __future__ import annotations

import errno
import os

import pytest

from leeward.daemon.run.beside import SharedLeaf
from leeward.isolation.cgroup import entry, hierarchy, none, watch
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit


def _leaf(monkeypatch: pytest.MonkeyPatch, code: int) -> none.NoneLeaf:
    def look(looks: watch.Looks, init: watch.Key, beside: object) -> tuple[list[watch.ProcessSample], int]:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(watch.Looks, "look", look)
    return none.NoneLeaf((0,), Limits())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_job_that_cannot_be_watched_ends_after_a_while(monkeypatch: pytest.MonkeyPatch, code: int):
    leaf = _leaf(monkeypatch, code)

    assert [None] * none.MOST_MISSED == [leaf.tick(1) for _ in range(none.MOST_MISSED)]
    assert Limit.MEMORY is leaf.tick(1)


def test_any_other_error_is_raised(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(OSError, match="Permission"):
        _leaf(monkeypatch, errno.EACCES).tick(1)


@pytest.mark.parametrize(("kills", "peak", "most", "own"), [
    ((3, 3), 90, 90, None), ((3, 4), 10, 0, False), ((3, 4), 10, 50, False), ((3, 4), 96, 0, True), ((3, 4), 38, 120, True),
    ((3, 4), 0, 0, True)])  # nothing is known that speaks for it
def test_a_kill_that_no_look_saw_is_compared_with_what_the_job_had(
        monkeypatch: pytest.MonkeyPatch, kills: tuple[int, int], peak: int, most: int, own: bool | None):
    """
    What a look saw, and what the kernel says that one process had at the most; whoever else was killed at that time is told
    the same, and a process that began later isn't.
    """
    counts = [*kills]
    monkeypatch.setattr(hierarchy, "oom_kills", lambda: counts.pop(0) if counts[1:] else counts[0])
    leaf = none.NoneLeaf((0,), Limits(memory=100 * MIB))
    leaf._account.memory_peak = peak * MIB
    leaf.armed()
    beside = SharedLeaf(leaf, None)

    assert own is leaf.killed_unseen(most * MIB)
    assert own is leaf.killed_unseen(most * MIB)
    assert beside.killed_unseen(most * MIB) is None
    assert SharedLeaf(leaf, None).killed_unseen(most * MIB) is None
    counts[0] += 1
    assert beside.killed_unseen(most * MIB) is entry.is_near(max(peak, most) * MIB, 100 * MIB)
    beside.begin()
    assert beside.killed_unseen(most * MIB) is None


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_look_sees_again_counts_by_the_limits_of_now(monkeypatch: pytest.MonkeyPatch, shared: bool):
    """And not by what the fast path has told of a job since the look before."""
    held = [watch.ProcessSample((2, 1), None, 50 * MIB, 0, 0, 50 * MIB // watch.PAGE, 1.0, 0.0, 3)]
    monkeypatch.setattr(watch, "key_of", lambda pid: (pid, 1))
    monkeypatch.setattr(watch.Looks, "look", lambda looks, init, beside: (held, 0.0))
    leaf = none.NoneLeaf((0,), Limits(memory=100 * MIB))
    if shared:
        leaf.share()

    for _ in range(2):
        assert leaf.tick(0) is None
        assert 50 * MIB == leaf.memory()
        leaf.saw(60 * MIB)
    assert 0 == leaf.usage().forks_refused
    leaf.apply(Limits(memory=100 * MIB, processes=3))
    leaf.tick(0)
    assert 1 == leaf.usage().forks_refused
    leaf.apply(Limits(memory=40 * MIB))
    assert Limit.MEMORY is leaf.tick(0)
