"""How modules of the blocking client are made from those of the asyncio client."""

from __future__ import annotations

from types import ModuleType

import pytest

from kit.from_file import module_at

SOURCE = '''\
"""
Boxes, for asyncio.
"""

from leeward.client.aio_waiting import Lock, sleep
from leeward.client.options import awaited_by
from leeward.client.sandbox_calls import (
    checked,
)


class AsyncBox:
    """
    Tasks may share a box.

    With asyncio, cancelling a task that waits for `run` ends it,
    at once.

    It is an AsyncBox.
    """

    # blocking: @property
    async def id(self) -> str:
        return await self._call("id")

    async def run(self, what: str, *, seconds: float | None = None,
                  more: bool = True) -> str:
        """Run it, in `async with AsyncBox() as box`."""
        async with self._lock:
            return checked(await self._call(what, [
                seconds,
                await self._more(more,
                                 False),
            ], awaited_by(self),
                                            more))

    async def each(self):
        async for one in self:  # asyncio
            yield one  # asyncio
        # blocking: yield from self

    async def __aenter__(self) -> "AsyncBox":
        return self
'''

MADE = '''\
"""
Boxes, for blocking programs.
"""

from leeward.client.options import served_by
from leeward.client.sandbox_calls import (
    checked,
)
from leeward.client.waiting import Lock, sleep


class Box:
    """
    Threads may share a box.

    It is an Box.
    """

    @property
    def id(self) -> str:
        return self._call("id")

    def run(self, what: str, *, seconds: float | None = None,
            more: bool = True) -> str:
        """Run it, in `with Box() as box`."""
        with self._lock:
            return checked(self._call(what, [
                seconds,
                self._more(more,
                           False),
            ], served_by(self),
                                      more))

    def each(self):
        yield from self

    def __enter__(self) -> "Box":
        return self
'''


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return module_at("packaging/blocking_client.py")


def test_a_blocking_module_is_made_from_one_for_asyncio(maker: ModuleType) -> None:
    """With other words, in its own order, and with continued lines below their brackets."""
    assert MADE == maker.blocking(SOURCE)


def test_what_needs_no_change_stays(maker: ModuleType) -> None:
    text = 'value = call("""\n    a [ b\n""", (1,\n                 2))  # a comment ( there\n'

    assert text == maker.blocking(text)
