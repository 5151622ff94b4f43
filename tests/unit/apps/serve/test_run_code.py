"""Answers to `/run_code`."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from leeward.apps.serve.problems import ServeProblem

pytestmark = pytest.mark.needs("extra-serve")


async def said(found):
    from leeward.apps.serve.calls import AnswerStream

    if not isinstance(found, AnswerStream):
        return [found.body]
    return [piece async for piece in found.pieces]


@pytest.mark.parametrize("sizes", [(), (3,), (1 << 20,), (0, 1 << 20, 5), ((3 << 18) * 2,), ((3 << 18) + 1, 7)])
def test_large_files_come_in_pieces_of_the_same_json(sizes):
    """So that the loop, and with it every other call, waits for no more than one of them."""
    from leeward.apps.serve.run_code import PIECE, answer

    files = {f"a\"{number}": b"\xff" * size for number, size in enumerate(sizes)}
    pieces = asyncio.run(said(answer({"status": "Success", "files": files, "message": "é"})))

    assert {"status": "Success", "message": "é", "files": {
        name: base64.b64encode(data).decode() for name, data in files.items()}} == json.loads(b"".join(pieces))
    assert all(len(piece) <= 2 * PIECE for piece in pieces)


def test_files_of_an_answer_are_bounded():
    from leeward.apps.serve.run_code import MOST_ANSWER, answer, fetched

    class Files:
        async def read(self, name, size):
            return b"x" * min(size, 10 << 20)

    class Box:
        files = Files()

    with pytest.raises(ServeProblem):
        answer({"files": {"a": bytes(MOST_ANSWER + 1)}})
    assert 10 << 20 == len(asyncio.run(fetched(Box, ["a"]))["a"])
    with pytest.raises(ServeProblem):
        asyncio.run(fetched(Box, ["a", "b"]))
