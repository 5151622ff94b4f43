"""How many sandboxes may watch files, and how a keeper bounds each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leeward._native import supervisor
from leeward._native.steps import Block, Call
from leeward.isolation import watching
from leeward.isolation.watching import Watchers


@pytest.fixture(autouse=True)
def _not_cached() -> Iterator[None]:
    watching.watchers.cache_clear()
    yield
    watching.watchers.cache_clear()


@pytest.mark.parametrize(("instances", "watches", "most"), [
    (128, 192536, 8), (1024, 192536, 11), (15, 192536, 0), (128, 8192, 0),
])
def test_half_of_what_the_user_has_is_the_sandboxes(
        monkeypatch: pytest.MonkeyPatch, instances: int, watches: int, most: int) -> None:
    numbers = {"max_user_instances": instances, "max_user_watches": watches, "max_queued_events": 10}
    monkeypatch.setattr(watching, "_number", numbers.__getitem__)
    monkeypatch.setattr(supervisor, "can_bound_watches", lambda path: True)

    assert Watchers(most, 5120) == watching.watchers()


def test_nobody_watches_where_no_sandbox_could_be_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "can_bound_watches", lambda path: False)

    assert watching.NOBODY == watching.watchers()


def test_a_file_that_is_not_there_bounds_nothing() -> None:
    assert not supervisor.can_bound_watches("/proc/sys/user/none")


def test_a_keeper_sets_both_bounds() -> None:
    steps = watching.steps()

    assert [Call.OPENAT, Call.WRITE, Call.CLOSE] * 2 == [step.call for step in steps]
    assert [str(supervisor.INSTANCES), str(supervisor.WATCHES)] == [
        block.data.decode() for step in steps for block in step.arguments if isinstance(block, Block)]
