"""Answers to `/run_code`."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from leeward.apps.serve.problems import ServeProblem
from leeward.errors import Busy, NoAnswer, QueueTimeout

pytestmark = pytest.mark.needs("extra-serve")


async def said(found):
    from leeward.apps.serve.calls import AnswerStream

    if not isinstance(found, AnswerStream):
        return [found.body]
    return [piece async for piece in found.pieces]


@pytest.mark.parametrize("sizes", [(), (3,), (1 << 20,), (0, 1 << 20, 5), ((3 << 18) * 2,), ((3 << 18) + 1, 7)])
def test_large_files_come_in_pieces_of_the_same_json(sizes):
    """So that the loop, and with it every other call, waits for no more than one of them."""
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.run_code import PIECE, answer

    files = {f"a\"{number}": b"\xff" * size for number, size in enumerate(sizes)}
    pieces = asyncio.run(said(answer(Use(), {"status": "Success", "files": files, "message": "é"})))

    assert {"status": "Success", "message": "é", "files": {
        name: base64.b64encode(data).decode() for name, data in files.items()}} == json.loads(b"".join(pieces))
    assert all(len(piece) <= 2 * PIECE for piece in pieces)


@pytest.mark.parametrize("output", [b"", b"abc", b"\xff" * 300_000, "é\0\U0001f600".encode() * 100_000,
                                    b"\xc3" * 98305 + b"\xa9"])
def test_much_output_comes_in_pieces_of_the_same_text(output):
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.run_code import PIECE, answer
    from leeward.apps.serve.run_code import said as text_of

    for row in ({"run_result": {"stdout": text_of(output)}, "compile_result": None},
                {"cells": [{"stdout": text_of(output)}] * 2}):
        pieces = asyncio.run(said(answer(Use(), {**row, "files": {}})))
        expected = {"stdout": output.decode("utf-8", "replace")}
        found = json.loads(b"".join(pieces))
        assert expected == (found["cells"][1] if "cells" in row else found["run_result"])
        assert all(len(piece) <= 14 * PIECE for piece in pieces)  # a byte can be \\ufffd, and a piece one too long


def test_files_of_an_answer_are_bounded():
    from leeward.apps.serve.run_code import MOST_ANSWER, answer, fetched

    class Files:
        async def read(self, name, size):
            return b"x" * min(size, 10 << 20)

    class Box:
        files = Files()

    with pytest.raises(ServeProblem):
        answer(None, {"files": {"a": bytes(MOST_ANSWER + 1)}})
    assert 10 << 20 == len(asyncio.run(fetched(Box, ["a"]))["a"])
    with pytest.raises(ServeProblem):
        asyncio.run(fetched(Box, ["a", "b"]))


@pytest.mark.parametrize("error", [Busy("busy"), QueueTimeout("late"), NoAnswer("no answer before the deadline")])
def test_a_job_that_waited_in_vain_may_be_repeated(error):
    """Trainers take any other answer for the end."""
    from leeward.apps.serve.run_code import RunCodeFace

    @asynccontextmanager
    async def turn(_call):
        yield

    async def fields(_most):
        return {}

    async def run(_call, _fields):
        raise error

    async def unless_gone(work):
        return await work

    face = RunCodeFace(SimpleNamespace(check_jobs=lambda _call: None, turn=turn, regularly=[]))
    with pytest.raises(ServeProblem) as late:
        asyncio.run(face._judged(SimpleNamespace(fields=fields, unless_gone=unless_gone, headers={}), run, {}))
    assert 504 == late.value.status


def test_a_lost_worker_is_no_answer_to_give_again():
    """With an Idempotency-Key, too, a trainer that repeats its call has the program run again."""
    from leeward.apps.serve.run_code import RunCodeFace, verdict
    from leeward.spec.outcome import Outcome

    door = SimpleNamespace(regularly=[])
    face = RunCodeFace(door)
    rows = [verdict(SimpleNamespace(outcome=outcome, ok=outcome is Outcome.FINISHED, hint=""))
            for outcome in (Outcome.INTERNAL, Outcome.FINISHED, Outcome.RAISED)]
    assert [True, False, False] == list(map(face._repeats._failed, rows))
    assert [face._repeats.forget] == door.regularly


def test_a_traceback_of_many_lines_is_bounded():
    from leeward.apps.serve.run_code import MOST_LINES, lines_of, size_of

    assert ["a", "b"] == lines_of("a\nb\n")
    assert MOST_LINES == len(lines_of("\n" * 65536))
    assert "\n".join(map(str, range(5000))) == "\n".join(lines_of("\n".join(map(str, range(5000)))))
    error = SimpleNamespace(message="12", traceback="345")
    assert 6 == size_of(SimpleNamespace(stdout=b"1", stderr=b"", results=[], error=error))
