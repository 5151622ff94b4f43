"""
Expands `$NAME` and `${NAME}` in settings, `~`, and relative paths.

Runs in:   anywhere; pure.
Trust:     none in the text. Values come from the caller's environment, and aren't expanded again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

#: A variable, or `$$` for a dollar.
_VARIABLE = r"\$(?:\$|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})"


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """*text* with its variables expanded, and the names of the variables that aren't set, which stay unexpanded."""
    if "$" not in text:
        return text, ()
    missing: dict[str, None] = {}

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if name not in environ:
            missing[name] = None
            return found[0]
        return environ[name]

    return re.sub(_VARIABLE, value, text), tuple(missing)


def variables_of(text: str) -> tuple[str, ...]:
    """The names of the variables in *text*, in order and without duplicates."""
    return tuple(dict.fromkeys(found[1] or found[2] for found in re.finditer(_VARIABLE, text) if found[0] != "$$"))


def absolute(path: str, base: str, home: str) -> str:
    """*path* as an absolute path without "." and "..": "~" stands for *home*, and a relative path is relative to *base*."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(base, path))
