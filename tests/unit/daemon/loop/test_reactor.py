"""The event loop: descriptors, deadlines, and that a callback may undo another."""

from __future__ import annotations

import os
import time

import pytest

from leeward.daemon.loop.reactor import READ, Reactor, Repeating


def test_a_ready_descriptor_calls_back(reactor: Reactor):
    read, write = os.pipe()
    got: list[bytes] = []
    reactor.watch(read, READ, lambda _: got.append(os.read(read, 10)))
    os.write(write, b"x")

    reactor.run(lambda: bool(got))

    assert [b"x"] == got
    reactor.forget(read)
    os.close(read)
    os.close(write)


def test_one_forgotten_in_this_turn_is_not_called(reactor: Reactor):
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def first(fd: int) -> None:
        called.append(fd)
        for read, _ in pipes:
            reactor.forget(read)

    for read, write in pipes:
        reactor.watch(read, READ, lambda _, read=read: first(read))
        os.write(write, b"x")
    reactor.turn(0)

    assert 1 == len(called)
    for pair in pipes:
        os.close(pair[0])
        os.close(pair[1])


def test_timers_run_in_order_and_cancelled_ones_don_t(reactor: Reactor):
    ran: list[str] = []
    now = time.monotonic()
    reactor.at(now + 0.002, lambda: ran.append("second"))
    reactor.at(now + 0.001, lambda: ran.append("first"))
    reactor.at(now, lambda: ran.append("never")).cancel()

    reactor.run(lambda: 2 == len(ran))

    assert ["first", "second"] == ran


def test_cancelled_timers_do_not_stay_until_they_are_due(reactor: Reactor):
    kept = reactor.after(3600.0, list)
    for _ in range(10_000):
        reactor.after(3600.0, list).cancel()
        reactor.turn(0)

    assert len(reactor._timers) < 200
    assert kept in [timer for _, _, timer in reactor._timers]


def test_a_timer_that_has_run_or_is_cancelled_twice_counts_once(reactor: Reactor):
    timers = [reactor.after(3600.0, list) for _ in range(100)]
    for timer in timers[:90] * 2:
        timer.cancel()
    ran = reactor.after(0.0, list)
    reactor.turn(0)
    ran.cancel()
    reactor.turn(0)

    assert timers[90:] == [timer for _, _, timer in sorted(reactor._timers)]
    assert ran.call is None
    assert 0 == reactor._cancelled.count


def test_soon_runs_after_this_turn_and_may_ask_again(reactor: Reactor):
    ran: list[int] = []

    def again() -> None:
        ran.append(len(ran))
        if len(ran) < 3:
            reactor.soon(again)

    reactor.soon(again)
    reactor.turn(0)

    assert [0] == ran
    reactor.run(lambda: 3 == len(ran))


def test_forgetting_an_unwatched_descriptor_has_no_effect(reactor: Reactor):
    reactor.forget(12345)


@pytest.mark.faults("it is what this is about")
def test_what_repeats_goes_on_after_a_fault(reactor: Reactor):
    """One of its look, and one before that."""
    looks: list[int] = []

    def look() -> bool:
        looks.append(0)
        return bool(1 / (len(looks) - 1))

    repeating = Repeating(reactor, 0.001, look)
    repeating.start()
    repeating.broken(MemoryError())
    reactor.run(lambda: 3 == len(looks))
    repeating.stop()

    assert 1 == reactor.barrier.faults
