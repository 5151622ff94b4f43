"""Jobs with several processors where no controller counts anything: the watch is as quick as they can be."""

from __future__ import annotations

import os

import pytest

from leeward.isolation.cgroup import none
from leeward.spec.limits import GIB, MIB, Limits

ALL = (2, 3, 5, 7)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*ALL})


@pytest.mark.parametrize(("cpu", "pinned", "count"), [(100, False, 0), (250, False, 2), (900, False, 4), (900, True, 0)])
def test_a_worker_has_as_many_processors_as_its_limit_is_worth(cpu: int, pinned: bool, count: int) -> None:
    worker = none.NoneDriver(pinned=pinned).worker(3, os.geteuid(), Limits(cpu=cpu, memory=4 * GIB))
    assert count == len({*worker.processors})
    assert {*worker.processors} <= {*ALL}
    assert (count > 0) is (worker.leaf(1, Limits(memory=4 * GIB)).cpu() is None)


def test_a_job_that_could_fill_its_memory_between_two_looks_has_one_processor() -> None:
    """The excess over the limit is an eighth at most if looks come in time, however many processors touch memory."""
    leaf = none.NoneLeaf(ALL, Limits(memory=GIB))
    assert leaf.cpu() is None
    assert leaf.gauges() is None  # the fast path looks for what one processor can do
    for memory in (GIB, len(ALL) * none.EACH):
        leaf.apply(Limits(memory=memory))
        leaf._account.memory = memory
        assert leaf.cpu() is None
        assert leaf.tick_interval * len(ALL) * none.FASTEST <= memory // none.PAST * 1.01
    leaf.apply(Limits(memory=128 * MIB))
    assert ALL[0] == leaf.cpu()
