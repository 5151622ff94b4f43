"""
No test passes while an exception of ours ends at the barrier, unless it says that it expects some.

    @pytest.mark.faults("what raises, and why that is wanted")

The barrier keeps a daemon alive whatever its callbacks raise, assertions of tests in callbacks among it; without this
a test would see a bug only by what comes of it.

Runs in:   pytest, as a plugin of conftest.py. Daemons in processes of their own tell of theirs in their log, at
which live_daemon.py looks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from kit import points
from leeward.loop.barrier import Barrier, name_of

#: The line of a daemon's log that tells of one.
EVENT = "a callback failed: a bug of leeward's, please report it"

#: What came to any barrier in this test.
CAUGHT: list[tuple[str, Exception]] = []


def _keep(barrier: Barrier, callback: Callable[..., object], error: Exception) -> None:
    """
    At the point `barrier.note`.
    """
    CAUGHT.append((name_of(callback), error))
    points.original("barrier.note")(barrier, callback, error)


class FaultPolicy:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        CAUGHT.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """
        What raised in the test, and while its fixtures ended.
        """
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
