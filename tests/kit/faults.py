"""
A test in which an exception ends at the barrier fails, unless its mark says that it expects such exceptions.

    @pytest.mark.faults("what raises, and why that is wanted")

The barrier keeps a daemon alive whatever its callbacks raise, assertions of tests in callbacks among it; without this
a test would see a bug only by what comes of it.

Runs in:   pytest, as a plugin of conftest.py. Daemons in processes of their own log such exceptions, and
live_daemon.py reads that log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from kit import points
from leeward.daemon.loop.barrier import Barrier, name_of

#: The event in a daemon's log for such an exception.
EVENT = "a callback failed: a bug of leeward's, please report it"

#: The callbacks and exceptions that came to any barrier in this test.
CAUGHT: list[tuple[str, Exception]] = []


def _keep(barrier: Barrier, callback: Callable[..., object], error: Exception) -> None:
    """At the point `barrier.note`."""
    CAUGHT.append((name_of(callback), error))
    points.original("barrier.note")(barrier, callback, error)


class FaultPolicy:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        CAUGHT.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail for exceptions in the test, and in the ends of its fixtures."""
        result = yield
        caught = list(CAUGHT)
        CAUGHT.clear()
        if caught and item.get_closest_marker("faults") is None:
            names = ", ".join(name for name, _ in caught)
            raise ExceptionGroup(f"{len(caught)} exceptions ended at the barrier: {names:.200}",
                                 [error for _, error in caught])
        return result


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "faults(reason): exceptions in callbacks are wanted here")
    points.fill("barrier.note", _keep)
    config.pluginmanager.register(FaultPolicy(), "leeward-fault-policy")
