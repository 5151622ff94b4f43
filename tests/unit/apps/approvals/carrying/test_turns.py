"""Whose turn it is: in order for one, side by side for several, and a bound for each."""

from __future__ import annotations

import functools
import threading

from kit.waiting import poll_until
from leeward.apps.approvals.carrying.carrying import TurnPool

PATIENCE = 30.0


def _wait(gate: threading.Event) -> None:
    gate.wait(PATIENCE)


def test_a_slow_task_of_one_owner_holds_no_other_up() -> None:
    pool, gate, done = TurnPool("test", 4, 1), threading.Event(), threading.Event()
    pool.submit("slow", functools.partial(_wait, gate))
    for _ in range(20):
        pool.submit("slow", lambda: None)
    pool.submit("quick", done.set)

    assert done.wait(PATIENCE)
    gate.set()
    pool.close()


def test_one_after_the_other_in_order_also_after_an_exception() -> None:
    pool, found, last = TurnPool("test", 4, 1), list[int](), threading.Event()

    def fails() -> None:
        raise ValueError

    for number in range(50):
        pool.submit("one", functools.partial(found.append, number))
        pool.submit("one", fails)
    pool.submit("one", last.set)
    assert last.wait(PATIENCE)
    assert list(range(50)) == found
    pool.close()


def test_no_task_begins_after_the_end() -> None:
    pool, gate, found = TurnPool("test", 2, 1), threading.Event(), list[int]()
    pool.submit("one", functools.partial(_wait, gate))
    pool.submit("one", lambda: found.append(1))
    closing = threading.Thread(target=pool.close)
    closing.start()
    poll_until(lambda: pool._over, "a pool that is closed")
    gate.set()
    closing.join(PATIENCE)
    pool.submit("two", lambda: found.append(2))

    assert [] == found
