"""
What all tests share. A skip for a feature that the machine has fails the run: skip_policy.py.
An escape test says which lock it is about, and is held to it: lock_policy.py.
"""

from __future__ import annotations

pytest_plugins = ["skip_policy", "lock_policy", "ordinary_user", "c_client"]
