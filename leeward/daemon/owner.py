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
    Return the user's home folder, or "" if the host has no entry of that user. The first call comes before the loop
    runs, because a name service may be slow; the result is kept.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""
