"""A job's pipes from inside: what comes whole, and what never comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from leeward._native.job_pipes import Pipes
from leeward.wire.job_frames import CODE, HEADER

NOTHING = b"nothing to tell"


Lay = Callable[[bytes], tuple[Pipes, int, int]]


@pytest.fixture
def lay() -> Iterator[Lay]:
    """Makes the pipes of a rehearsal in which some data has come and no more will; with the two read ends."""
    ends: list[int] = []

    def make(data: bytes) -> tuple[Pipes, int, int]:
        job, write = os.pipe()
        read, reply = os.pipe()
        ends.extend((job, read, reply))
        os.write(write, data)
        os.close(write)
        return Pipes(job, reply, lone=CODE, workspace="/", nothing=NOTHING, last=False), job, read

    yield make
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("payload", [b"", b"x", CODE + b"print(1)", bytes(range(256)) * 200])
def test_a_frame_and_no_byte_behind_it(lay: Lay, payload: bytes) -> None:
    pipes, job, _ = lay(HEADER.pack(len(payload)) + payload + b"next")

    assert payload == pipes.take()
    assert b"next" == os.read(job, 100)


@pytest.mark.parametrize("data", [b"", b"\0\0", HEADER.pack(5) + b"four"])
def test_half_a_frame_is_none(lay: Lay, data: bytes) -> None:
    assert lay(data)[0].take() is None


def test_the_reply_of_a_rehearsal_goes_out_and_the_caller_goes_on(lay: Lay) -> None:
    pipes, _, reply = lay(b"")

    pipes.finish()

    assert NOTHING == os.read(reply, 100)
