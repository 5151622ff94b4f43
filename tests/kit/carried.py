"""
A way to a fleet's carrier in this process, which copies what travels, as Ray's would.

Runs in:   the tests.
"""

from __future__ import annotations

import asyncio
import pickle

from leeward.apps.fleet.carrier import Answered, Call, Carrier


class Way:
    """A way to *carrier* that copies what travels. `batches` has the sizes of messages; `broken` ends it."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.batches: list[int] = []
        self.fetched: list[int] = []
        self.broken = False
        self.slow = asyncio.Event()
        self.slow.set()

    async def submit(self, calls: list[Call]) -> None:
        if self.broken:
            raise ConnectionError
        await self.slow.wait()
        self.batches.append(len(calls))
        self.carrier.submit("me", pickle.loads(pickle.dumps(calls)))

    async def fetch(self) -> list[Answered]:
        answers: list[Answered] = pickle.loads(pickle.dumps(await self.carrier.fetch("me")))
        if self.broken:
            raise ConnectionError
        self.fetched.append(len(answers))
        return answers

    async def close(self) -> None:
        await self.carrier.close("me")
