"""
Where a user's own files are.

Source:    XDG Base Directory Specification 0.8: a relative path in these variables is ignored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_BELOW_HOME = {"CONFIG": ".config", "STATE": ".local/state", "CACHE": ".cache", "DATA": ".local/share"}


def user_folder(environ: Mapping[str, str], kind: str, *below: str) -> str:
    """The folder for *kind* (CONFIG, STATE, CACHE or DATA) of the user with this environment, or what is *below* it."""
    given = environ.get(f"XDG_{kind}_HOME", "")
    if not given.startswith("/"):
        given = os.path.join(home_folder(environ), _BELOW_HOME[kind])
    return os.path.join(given, *below)


def home_folder(environ: Mapping[str, str]) -> str:
    """HOME, else what the user's entry has. A path that isn't there stands for none: a ~ would be a folder of that name."""
    if environ.get("HOME"):
        return environ["HOME"]
    import pwd  # a library that most programs don't need

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a user without an entry
        return "/nonexistent"
