"""A transport that a test plays."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from leeward.base.paced_reading import PIECE, PacedTransport


class Played:
    is_reading, is_over = True, False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_over


@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_has_come_is_taken_in_pieces_with_turns_for_others(is_wanted: bool) -> None:
    async def main() -> None:
        played, found = Played(), list[bytes]()
        paced = PacedTransport(cast("Any", played), found.append, asyncio.get_running_loop())
        paced.received(b"a" * PIECE)
        assert played.is_reading

        paced.received(b"b" * (2 * PIECE) + b"c")
        paced.received(b"d")
        (paced.resume_reading if is_wanted else paced.pause_reading)()
        for pieces in (2, 3):
            assert pieces == len(found)
            assert not played.is_reading
            await asyncio.sleep(0)
        assert [b"a" * PIECE, b"b" * PIECE, b"b" * PIECE, b"cd"] == found
        assert is_wanted is played.is_reading
        paced.resume_reading()
        assert played.is_reading

    asyncio.run(main())


def test_of_a_transport_that_closes_no_more_is_taken() -> None:
    async def main() -> None:
        played, found = Played(), list[bytes]()
        paced = PacedTransport(cast("Any", played), found.append, asyncio.get_running_loop())
        paced.received(b"a" * (2 * PIECE))
        played.is_over = True
        await asyncio.sleep(0)

        assert [b"a" * PIECE] == found

    asyncio.run(main())
