"""
Where a user's own files are.

Source:    XDG Base Directory Specification 0.8: a relative path in these variables is ignored.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping

_BELOW_HOME = {"CONFIG": ".config", "STATE": ".local/state", "CACHE": ".cache", "DATA": ".local/share"}


def user_folder(environ: Mapping[str, str], kind: str, *below: str) -> str:
    """The folder for *kind* (CONFIG, STATE, CACHE or DATA) of the user with this environment, or what is *below* it."""
    given = environ.get(f"XDG_{kind}_HOME", "")
    if not given.startswith("/"):
        given = os.path.join(environ.get("HOME") or _home(), _BELOW_HOME[kind])
    return os.path.join(given, *below)


def _home() -> str:
    import pwd  # a library that most programs don't need

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a user without an entry
        return "/nonexistent"
