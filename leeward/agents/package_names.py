"""
Names of system packages in settings.

Runs in:   anywhere; pure.
"""

from __future__ import annotations

import re

#: A package of Debian's: its name, and perhaps an architecture and a version, as apt-get takes them.
_PACKAGE = r"[a-z0-9][a-z0-9+.-]{1,99}(:[a-z0-9-]{1,20})?(=[A-Za-z0-9.+:~-]{1,100})?"


def check_package(text: str) -> str:
    """
    Raises:
        ValueError: no name of a package; what is wrong with it.
    """
    if not re.fullmatch(_PACKAGE, text):
        raise ValueError("a package is a name of Debian's, such as jq, ripgrep=13.0.0-4 or libc6:i386")
    return text
