"""
Names of system packages in settings.

Runs in:   anywhere; pure.
"""

from __future__ import annotations

import re

#: The name of a Debian package, with an optional architecture and version, as apt-get takes them.
_PACKAGE = r"[a-z0-9][a-z0-9+.-]{1,99}(:[a-z0-9-]{1,20})?(=[A-Za-z0-9.+:~-]{1,100})?"


def check_package(text: str) -> str:
    """
    *text*, if it names a Debian package.

    Raises:
        ValueError: it doesn't.
    """
    if not re.fullmatch(_PACKAGE, text):
        raise ValueError("must be the name of a Debian package, such as jq, ripgrep=13.0.0-4 or libc6:i386")
    return text
