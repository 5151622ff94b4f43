"""
TLS contexts that modules make while the zygote imports them, such as aiohttp's: each sandbox adds its own authority,
which the zygote can't know.

Runs in:   `find` in the zygote; `tell` in the job's process, before its first code.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

_BEGINS = b"-----BEGIN CERTIFICATE-----"
#: Bytes of a certificate, at most.
_MOST = 4096

_found: list[Any] = []
_path = ""


def find(path: str) -> None:
    """
    Find the contexts. Called before the garbage collector's objects are frozen, because it doesn't list frozen ones.

    Args:
        path: a file of certificates. The last is the authority's.
    """
    global _path
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        _path = path
        _found[:] = [each for each in gc.get_objects() if issubclass(type(each), ssl.SSLContext) and each.verify_mode]


def tell() -> None:
    """Add the authority to the contexts. If that fails, nothing is raised, and their connections will be refused."""
    if not _found:
        return
    try:
        with open(_path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST))
            _, begins, last = file.read().rpartition(_BEGINS)
        for each in _found:
            each.load_verify_locations(cadata=(begins + last).decode())
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return
