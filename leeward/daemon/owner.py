"""The user whose daemon this is."""

from __future__ import annotations

import os
import pwd
from functools import cache


@cache
def home() -> str:
    """
    Return the user's home folder, "" if the host has none. The first call comes before the loop: a name service may be
    slow.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""
