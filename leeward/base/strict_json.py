"""
JSON from who isn't trusted, read as its standard has it: Python's reader takes more.

Runs in:   anywhere; pure.
Source:    RFC 8259
"""

from __future__ import annotations

import json
from typing import Any


def json_object(content: bytes) -> dict[str, Any]:
    """
    The object in *content*, in UTF-8. ValueError for all else: other values, NaN and infinities, half a surrogate pair,
    which can't be written as UTF-8 again, and values too deep within each other.
    """
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=no_constant)
        if b"\\u" in content:
            json.dumps(value, ensure_ascii=False).encode()  # fails for a lone surrogate
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def no_constant(name: str) -> Any:
    """For `parse_constant`: NaN and the infinities are an error."""
    raise ValueError(name)
