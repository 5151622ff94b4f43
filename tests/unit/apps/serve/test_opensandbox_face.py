"""OpenSandbox's face, with a process and rows that a test makes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from kit.live_daemon import PATIENCE
from leeward.apps.serve import opensandbox_face
from leeward.apps.serve.opensandbox_face import _AT_ONCE, _BEHIND
from leeward.client.sandbox_calls import Chunk
from leeward.spec.outcome import Outcome, Result

LINES = 10_000


class Program:
    """A process with such chunks of output; at a None it writes nothing for so long as a call waits."""

    number = 1

    def __init__(self, *chunks: bytes | None) -> None:
        self._chunks = list(chunks)

    async def read(self, timeout: float | None = None) -> list[Chunk]:
        while self._chunks:
            data = self._chunks.pop(0)
            if data is not None:
                return [Chunk(1, "stdout", 0.0, data)]
            if timeout is not None:
                break
        return []

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while found := await self.read():
            yield found[0]

    async def wait(self, timeout: float | None = None) -> Result | None:
        return Result(b"", b"", 0, Outcome.FINISHED) if not self._chunks or timeout is None else None


async def pieces(program: Program, is_behind: bool = False) -> list[bytes]:
    return [piece async for piece in opensandbox_face._followed(cast("Any", program), is_behind)]


def kinds(piece: bytes) -> list[str]:
    return [json.loads(line.removeprefix(b"data: "))["type"] for line in piece.split(b"\n\n") if line]


def test_many_lines_leave_turns_to_other_calls():
    async def main() -> tuple[int, int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        found = b"".join(await pieces(Program(b"\n" * LINES)))
        beside.cancel()
        return found.count(b'"stdout"'), turns

    count, turns = asyncio.run(main())

    assert LINES == count
    assert turns >= LINES // _AT_ONCE


def test_a_command_that_is_over_at_once_is_told_in_one_piece(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opensandbox_face, "_EARLY_S", PATIENCE)
    said = asyncio.run(pieces(Program(b"one\n", b"two")))

    assert [["init", "stdout", "stdout", "execution_complete"]] == [kinds(piece) for piece in said]


@pytest.mark.parametrize(("chunks", "rest"), [
    ((None, b"a\n"), ["stdout"]), ((b"a\n", None, b"b"), ["stdout", "stdout"]), ((None, b"", None), [])])
def test_a_command_that_goes_on_is_told_of_before_its_end(chunks: tuple[bytes | None, ...], rest: list[str]):
    said = asyncio.run(pieces(Program(*chunks)))

    assert ["init"] == kinds(said[0])
    assert [*rest, "execution_complete"] == [kind for piece in said[1:] for kind in kinds(piece)]


def test_of_a_command_in_the_background_only_its_beginning_is_told():
    assert [["init"]] == [kinds(piece) for piece in asyncio.run(pieces(Program(b"a\n"), is_behind=True))]


def test_a_program_that_only_looks_like_a_command_in_the_background_is_none():
    assert ("/tmp/a", ["b"]) == opensandbox_face._behind({"argv": ["sh", "-c", _BEHIND, "sh", "/tmp/a", "b"]})
    for argv in (None, [], ["sh", "-c", _BEHIND], ["sh", "-c", _BEHIND, "sh", "/tmp/a"]):
        assert ("", argv or []) == opensandbox_face._behind({"argv": argv})
