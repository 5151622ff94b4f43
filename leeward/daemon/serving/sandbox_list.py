"""
The sandboxes of a user, page by page: a list of a thousand has more values than a frame may have.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client: the rows contain its own texts, which may be large.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from leeward.sandboxes.desk import Desk

#: Rows of one answer, values and bytes of all of them together: below what a frame may have, and some milliseconds.
MOST_ROWS, MOST_VALUES, MOST_BYTES = 128, 24_000, 4 << 20


def page(desk: Desk, user: int, after: int) -> Mapping[str, Any]:
    """Return the answer to a `sandbox_list`: as many as fit of the sandboxes that were opened after number *after*."""
    rows: list[Mapping[str, Any]] = []
    values = size = 0
    last = after
    for entry in desk.of(user):
        if entry.serial <= after:
            continue
        if len(rows) >= MOST_ROWS:
            return {"sandboxes": rows, "more": True, "last": last}
        row = desk.info(entry)
        values, size = values + _values(row), size + len(msgpack.packb(row))
        if rows and (values > MOST_VALUES or size > MOST_BYTES):
            return {"sandboxes": rows, "more": True, "last": last}
        rows.append(row)
        last = entry.serial
    return {"sandboxes": rows, "more": False}


def _values(what: object) -> int:
    if isinstance(what, Mapping):
        return 1 + len(what) + sum(map(_values, what.values()))
    return 1 + sum(map(_values, what)) if isinstance(what, list) else 1
