"""What waits for a client, over a stream that takes as much as the test says."""

from __future__ import annotations

from collections.abc import Sequence

from leeward.daemon.run.report import LARGE_REPLY as LARGE
from leeward.daemon.serving.parcel import Outbox, Parcel


class Stream:
    """Takes *room* bytes."""

    fd, backlog = 7, 0

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""

    def read(self, on: bool) -> None:
        return

    def allow_fast_path(self, on: bool) -> None:
        return

    def close(self) -> None:
        return

    def send(self, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        if not self.room:
            raise BlockingIOError
        size = min(self.room, len(data))
        self.taken += data[:size]
        self.room -= size
        return size


def test_the_rest_of_a_large_answer_counts_until_it_is_sent() -> None:
    """Though it goes together with the small ones behind it."""
    owned: list[int] = []
    outbox = Outbox(owned.append, lambda: 0.0)
    stream = Stream(LARGE)
    large, small = b"l" * (LARGE + 100), b"s" * 10
    outbox.put(Parcel(memoryview(large), weight=1))
    outbox.flush(stream)
    outbox.put(Parcel(memoryview(small)))
    assert 1 == sum(owned)

    stream.room = 50
    outbox.flush(stream)
    assert (1, 1) == (sum(owned), len(outbox))
    stream.room = 1000
    outbox.flush(stream)

    assert (0, 0, 0) == (sum(owned), len(outbox), outbox.size)
    assert large + small == stream.taken
