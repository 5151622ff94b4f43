"""
The user whose daemon this is.

Runs in:   the daemon.
"""

from __future__ import annotations

import os
import pwd
from functools import cache


@cache
def home() -> str:
    """
    His home folder, "" where the host knows none. Asked before the loop runs: a name service may take its time.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""
