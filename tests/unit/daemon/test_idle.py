"""When a daemon that nobody needs ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kit.clock import Clock
from leeward.daemon.ending import LOOKS, Idle


@pytest.fixture
def scene() -> SimpleNamespace:
    scene = SimpleNamespace(clock=Clock(), seconds=100.0, requests=0, busy=False, ended=0)

    def end() -> None:
        scene.ended += 1

    scene.idle = Idle(scene.clock, lambda: scene.seconds, lambda: (scene.requests, scene.busy), end)
    return scene


def test_the_daemon_ends_when_its_idle_time_has_passed(scene: SimpleNamespace) -> None:
    """Not before, and at most a tenth later."""
    scene.idle.watch()
    while not scene.ended:
        scene.clock.step()

    assert 100.0 <= scene.clock.time <= 100.0 + 2 * 100.0 / LOOKS
    assert (1, []) == (scene.ended, scene.clock.timers)


@pytest.mark.parametrize("busy", [True, False])
def test_work_begins_the_time_anew(scene: SimpleNamespace, busy: bool) -> None:
    """A request between two looks, or a job that runs on."""
    scene.idle.watch()
    for _ in range(5 * LOOKS):
        scene.clock.step()
        scene.busy, scene.requests = busy, scene.requests + (not busy)
    scene.busy, last = False, scene.clock.time
    while not scene.ended:
        scene.clock.step()

    assert 100.0 <= scene.clock.time - last <= 100.0 + 2 * 100.0 / LOOKS


def test_an_idle_time_of_never_and_a_new_one_are_honoured(scene: SimpleNamespace) -> None:
    """0 sets no timer; a reload that changes it replaces the one that is there."""
    scene.seconds = 0
    scene.idle.watch()
    assert [] == scene.clock.timers
    for scene.seconds in (50.0, 10.0):
        scene.idle.watch()
    assert [10.0 / LOOKS] == [timer.when for timer in scene.clock.timers]
    scene.seconds = 0
    scene.idle.watch()
    assert [] == scene.clock.timers
