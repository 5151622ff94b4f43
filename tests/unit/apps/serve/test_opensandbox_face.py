"""OpenSandbox's face, with a process and rows that a test makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from leeward.apps.serve import opensandbox_face
from leeward.apps.serve.opensandbox_face import _AT_ONCE, _BEHIND
from leeward.client.sandbox_calls import Chunk
from leeward.spec.outcome import Outcome, Result

LINES = 10_000


class Empty:
    """A process that has written many empty lines."""

    number = 1

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        yield Chunk(1, "stdout", 0.0, b"\n" * LINES)

    async def wait(self) -> Result:
        return Result(b"", b"", 0, Outcome.FINISHED)


def test_many_lines_leave_turns_to_other_calls():
    async def main() -> tuple[int, int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        found = b"".join([piece async for piece in opensandbox_face._followed(cast("Any", Empty()))])
        beside.cancel()
        return found.count(b'"stdout"'), turns

    count, turns = asyncio.run(main())

    assert LINES == count
    assert turns >= LINES // _AT_ONCE


def test_a_program_that_only_looks_like_a_command_in_the_background_is_none():
    assert ("/tmp/a", ["b"]) == opensandbox_face._behind({"argv": ["sh", "-c", _BEHIND, "sh", "/tmp/a", "b"]})
    for argv in (None, [], ["sh", "-c", _BEHIND], ["sh", "-c", _BEHIND, "sh", "/tmp/a"]):
        assert ("", argv or []) == opensandbox_face._behind({"argv": argv})
