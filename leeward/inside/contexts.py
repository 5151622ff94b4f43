"""
Contexts of TLS that modules have made while they were imported in the zygote: in a sandbox they trust its own authority
as well, of which the zygote can't know. aiohttp makes one when it is imported.

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
    Find them; before the collector's objects are frozen, of which it tells no more.

    Args:
        path: of the file of certificates, whose last one is the authority's.
    """
    global _path
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        _path = path
        _found[:] = [each for each in gc.get_objects() if issubclass(type(each), ssl.SSLContext) and each.verify_mode]


def tell() -> None:
    """
    Have them trust it. Without, connections of theirs are refused: that isn't for the job to see here.
    """
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
