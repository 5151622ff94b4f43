"""
Public suffixes: domains below which anybody can register a name.

Runs in:   a user's or an operator's program; pure except that it reads the list once.
Source:    publicsuffix.org; the list comes with the package publicsuffixlist, with its date and its licence (MPL 2.0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from leeward.errors import Unsupported


def registrable(name: str) -> str | None:
    """
    Return the shortest domain at or above *name* that can be registered: example.co.uk for a.example.co.uk. None if
    *name* is a public suffix itself.

    Raises:
        Unsupported: the list isn't installed.
    """
    found = _suffixes()(name)
    return None if found is None else str(found)


@functools.cache
def _suffixes() -> Callable[[str], Any]:
    try:
        from publicsuffixlist import PublicSuffixList  # of the extra `approvals`
    except ImportError:
        raise Unsupported("the list of public suffixes", have="none", need="the package publicsuffixlist",
                          cure="pip install 'leeward[approvals]'") from None
    return PublicSuffixList().privatesuffix
