"""The calls of a job, on pipes whose other ends are here."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Iterator

import pytest

from leeward.inside.function_stubs import FunctionChannel, _Waiting
from leeward.wire import function_frames as wire
from leeward.wire.job_frames import HEADER


class Far:
    """A channel, and the daemon's ends of its pipes."""

    def __init__(self) -> None:
        self.job, self.far_job = os.pipe()
        self.far_reply, self.reply = os.pipe()
        self.channel = FunctionChannel(["f"], self.job, self.reply)

    def call(self) -> wire.FunctionCall:
        assert select.select([self.far_reply], [], [], 10)[0]
        size = HEADER.unpack(os.read(self.far_reply, HEADER.size))[0]
        return wire.read_call(os.read(self.far_reply, size))

    def answer(self, number: int, body: bytes, *, raised: bool = False) -> None:
        for piece in wire.answer_frames(number, raised, body):
            os.write(self.far_job, piece)


@pytest.fixture
def far() -> Iterator[Far]:
    made = Far()
    yield made
    made.channel.close(1)
    for fd in (made.job, made.far_job, made.far_reply, made.reply):
        os.close(fd)


def test_the_first_calls_of_two_threads_are_both_made(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's comes while the pipe is made that wakes the carrier: the interpreter lets it in there."""
    make, us = os.pipe, threading.get_ident()
    inner: list[_Waiting] = []
    made: list[int] = []

    def pipe() -> tuple[int, int]:
        made.append(len(made))
        if 1 == len(made):
            inner.append(far.channel.ask(0, b"inner"))
            if threading.get_ident() == us:  # else it is the carrier that waits here
                select.select([far.far_reply], [], [], 10)
        return make()

    monkeypatch.setattr(os, "pipe", pipe)
    outer = far.channel.ask(0, b"outer")
    bodies = {}
    for _ in range(2):
        call = far.call()
        bodies[call.body] = call.number
    assert {b"inner", b"outer"} == set(bodies)
    for body, number in bodies.items():
        far.answer(number, wire.pack(body))
    assert b"outer" == outer.result()
    assert b"inner" == inner[0].result()


def test_a_stop_iteration_ends_the_wait_in_a_loop(far: Far) -> None:
    """No future takes one."""
    async def main() -> None:
        waits = far.channel.functions["f"]()
        far.answer(far.call().number, wire.pack_error("StopIteration", ""), raised=True)
        await asyncio.wait_for(waits, 10)

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(main())
