"""
Answers that one client hasn't read yet.

Runs in:   the daemon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from leeward.daemon.serving.parcel import Parcel
from leeward.loop.stream import Stream

#: Bytes of small answers that are sent together, at most.
_TOGETHER = 1 << 16


class Outbox:
    """
    The parcels that wait for the client, in the order in which they are sent.

    Args:
        own: adds a number, perhaps negative, to the count of large results that wait here.
        now: the reactor's clock.

    Attributes:
        size: bytes that wait.
        unread_since: when the kernel last took a byte of the waiting answers; None if none waits.
    """

    __slots__ = ("_flying", "_now", "_own", "_parcels", "size", "unread_since")

    def __init__(self, own: Callable[[int], None], now: Callable[[], float]) -> None:
        self._own, self._now = own, now
        self._parcels: deque[Parcel] = deque()
        self._flying = False  # the first one is with the kernel, which will say how much it took
        self.size = 0
        self.unread_since: float | None = None

    def __len__(self) -> int:
        return len(self._parcels)

    def put(self, parcel: Parcel) -> None:
        """Queue *parcel*, whose descriptors belong to the outbox from now on."""
        self._parcels.append(parcel)
        self.size += len(parcel.frame)
        self._own(parcel.weight)

    def flush(self, stream: Stream) -> None:
        """
        Send as many bytes as *stream* takes.

        Raises:
            OSError: the client is gone.
        """
        while self._parcels and not self._flying:
            parcel = self._first()
            try:
                sent = stream.send(parcel.frame, [arena.fd for arena in parcel.arenas])
            except BlockingIOError:
                sent = -1
            if sent is not None and sent >= 0:
                self._took(parcel, sent)
                continue
            self._flying = sent is None
            if self.unread_since is None:
                self.unread_since = self._now()
            return

    def sent(self, count: int) -> None:
        """Note that the kernel has taken *count* bytes of the submitted parcel; it is negative if the send has failed."""
        self._flying = False
        if count < 0:
            self._give_up(self._parcels.popleft())
        else:
            self._took(self._parcels[0], count)

    def close(self) -> None:
        """
        Drop everything except the parcel that the kernel may still be sending, which is dropped when the kernel reports
        its end.
        """
        while len(self._parcels) > self._flying:
            self._give_up(self._parcels.pop())

    def _give_up(self, parcel: Parcel) -> None:
        self.size -= len(parcel.frame)
        self._own(-parcel.weight)
        parcel.close()

    def _first(self) -> Parcel:
        """Return the bytes to send next: consecutive small answers are sent together."""
        first = self._parcels.popleft()
        frames, size, weight = [first.frame], len(first.frame), first.weight
        while self._parcels and not (first.arenas or self._parcels[0].arenas) and \
                size + len(self._parcels[0].frame) <= _TOGETHER:
            one = self._parcels.popleft()
            frames.append(one.frame)
            size += len(one.frame)
            weight += one.weight  # of a large one the rest may be small
        if len(frames) > 1:
            first = Parcel(memoryview(b"".join(frames)), weight=weight)
        self._parcels.appendleft(first)
        return first

    def _took(self, parcel: Parcel, sent: int) -> None:
        """Note that the kernel has taken *sent* bytes of the first parcel, and its descriptors."""
        if parcel.arenas:
            self._own(-len(parcel.arenas))
            parcel.weight -= len(parcel.arenas)
            parcel.close()
        self.unread_since = None
        self.size -= sent
        if sent < len(parcel.frame):
            parcel.frame = parcel.frame[sent:]
        else:
            self._own(-parcel.weight)
            self._parcels.popleft()
