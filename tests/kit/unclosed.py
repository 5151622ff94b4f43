"""
Takes away what a test that failed has left open.

Such a test closes nothing behind the line where it stopped: its frames hold it, and `sys.last_value` holds them. Dropped
later, sockets and files would warn in another test, which would fail for it, or while pytest ends, which would be a crash.
What a test that passes leaves open is an error still.

Runs in:   pytest, as a plugin of conftest.py.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Generator

import pytest


def close_garbage() -> None:
    """
    For a test that counts this process's descriptors, before it counts first: what earlier tests have left in cycles,
    such as results in the frame of a caught exception, would be closed at any moment of it.
    """
    gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test; if it fails, drop its frames while nobody is warned."""
    failed = item.session.testsfailed
    result = yield
    if item.session.testsfailed > failed:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                setattr(sys, name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result
