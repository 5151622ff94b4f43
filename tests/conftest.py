"""
What all tests share. A skip for a feature that the machine has fails the run: kit/skip_policy.py.
An escape test says which lock it is about, and is held to it: kit/lock_policy.py.
An exception of ours that ended at the barrier fails the test: kit/faults.py.
A test that fails with something open is the only one that fails for it: kit/unclosed.py.
"""

from __future__ import annotations

import os
import signal

import pytest

from kit import points

points.build()  # before the first import of leeward's, which the plugins make

pytest_plugins = ["kit.quick", "kit.skip_policy", "kit.lock_policy", "kit.faults", "kit.unclosed", "kit.ordinary_user",
                  "kit.c_client", "kit.beside", "kit.fixtures"]

# Set in many containers: then each program that a test starts compiles anew what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Ignored, as in the background of a script, they would stay so in every program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1)

#: Seconds for a test of the long run: ten thousand jobs on a machine that does something else as well.
LONG_S = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give long forms the time that they take; pyproject.toml has what is enough for short ones."""
    if os.environ.get("LEEWARD_LONG"):
        for item in items:
            item.add_marker(pytest.mark.timeout(LONG_S))
