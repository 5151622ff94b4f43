"""
Large requests by shared memory: the arena that the daemon gives to a connection.

The client writes a request into a free slot of the arena by pwrite(2), and sends a small frame with the slot's number.
The slot is free again when the request was answered; the daemon may read it until then. If there is no arena or no free
slot, or the request is larger than a slot, it is sent over the socket as any other request.
"""

from __future__ import annotations

import os

from leeward.client.arena import SHRINK, seals_of
from leeward.errors import BadReply

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

#: Requests of this many bytes or more are sent through the arena. Measured: docs/measurements.
LARGE = 1 << 20
#: The greatest number of slots, and of bytes in each, that a client accepts.
MOST_SLOTS, MOST_SIZE = 64, 1 << 30


def bulk(op: str, fields: Mapping[str, Any]) -> int:
    """The approximate size of a request in bytes: the sum of its fields that may be large."""
    if op != "execute":
        return 0
    files = sum(map(len, fields.get("files", {}).values()))
    return len(fields.get("code") or b"") + len(fields.get("stdin", b"")) + files


class Slots:
    """The slots of one connection's arena: *count* of *size* bytes each in the memory file *fd*, which this object owns."""

    def __init__(self, fd: int, count: int, size: int) -> None:
        self._fd, self._size = fd, size
        self._free = list(range(count))

    def put(self, payload: bytes) -> int | None:
        """Write *payload* into a free slot, and return the slot's number; None if no slot is free or large enough."""
        if not self._free or len(payload) > self._size:
            return None
        slot = self._free.pop()
        done, view = 0, memoryview(payload)
        try:
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], slot * self._size + done)
        except OSError:  # no memory for the slot's pages; sending over the socket needs less memory at a time
            self._free.append(slot)
            return None
        return slot

    def free(self, slot: int) -> None:
        """Mark a slot as free, after its request was answered."""
        self._free.append(slot)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._free.clear()


def slots_of(ok: Mapping[str, Any], sizes: Sequence[int], descriptors: Sequence[int]) -> Slots:
    """The slots of the arena in a reply; BadReply if it isn't one. Takes ownership of *descriptors* in any case."""
    count, size = ok.get("slots"), ok.get("size")
    try:
        if type(count) is not int or type(size) is not int or not 0 < count <= MOST_SLOTS \
                or not 0 < size <= MOST_SIZE or list(sizes) != [count * size] or len(descriptors) != 1:
            raise BadReply("the daemon sent an invalid arena")
        try:
            sealed = seals_of(descriptors[0]) & SHRINK
        except OSError:
            sealed = 0
        if not sealed or os.fstat(descriptors[0]).st_size != count * size:
            raise BadReply("the daemon sent an arena with an invalid file")
    except BadReply:
        for fd in descriptors:
            os.close(fd)
        raise
    return Slots(descriptors[0], count, size)
