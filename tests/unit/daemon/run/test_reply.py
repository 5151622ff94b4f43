"""The frame that a job answers by, out of a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from leeward.daemon.run.reply import REPLY_CHUNK, ReplyReader
from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.wire import job_frames as wire


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for fd in ends:
        os.close(fd)


def frame(body: bytes) -> bytes:
    return wire.HEADER.pack(len(body)) + body


def test_a_reply_is_complete_with_its_last_byte_wherever_it_is_cut(pipe: tuple[int, int]) -> None:
    """What comes behind it is left in the pipe."""
    read, write = pipe
    whole = frame(b"the body")
    for cut in range(len(whole)):
        reader = ReplyReader(Job(code=b""))
        os.write(write, whole[:cut])
        assert not reader.read(read, REPLY_CHUNK)
        os.write(write, whole[cut:] + b"x")

        assert reader.read(read, REPLY_CHUNK)
        assert (b"the body", b"x") == (reader.body, os.read(read, 10))


def test_bytes_read_elsewhere_count(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reader = ReplyReader(Job(code=b""))
    whole = frame(b"the body")
    reader.feed(whole[:6])
    os.write(write, whole[6:])

    assert reader.read(read, REPLY_CHUNK)
    assert b"the body" == reader.body


def test_a_reply_is_read_in_turns(pipe: tuple[int, int]) -> None:
    """Once it has taken so many bytes it stops, and others have their turn."""
    read, write = pipe
    reader = ReplyReader(Job(code=b""))
    os.write(write, frame(bytes(1000)))
    turns = 1
    while not reader.read(read, wire.HEADER.size):
        turns += 1

    assert 2 == turns
    assert bytes(1000) == reader.body


@pytest.mark.parametrize(("job", "most"), [
    (Job(code=b""), wire.MAX_BARE_REPLY),
    (Job(code=b"", collect=("f",)), ReplyReader(Job(code=b"", collect=("f",))).most),
])
def test_a_reply_that_announces_too_much_is_refused(job: Job, most: int, pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, wire.HEADER.pack(most))
    assert not ReplyReader(job).read(read, REPLY_CHUNK)  # control
    os.write(write, wire.HEADER.pack(most + 1))

    with pytest.raises(PeerError, match=f"a reply of {most + 1} bytes"):
        ReplyReader(job).read(read, REPLY_CHUNK)


def test_collected_files_have_room() -> None:
    job = Job(code=b"", collect=("f",))

    assert ReplyReader(job).most > wire.MAX_BARE_REPLY + wire.MAX_WITHIN
    assert ReplyReader(job).most_behind == job.limits.files


def test_an_end_that_is_closed_is_noticed() -> None:
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    reader = ReplyReader(Job(code=b""))
    os.write(write, b"\0\0")
    assert (False, False) == (reader.read(read, REPLY_CHUNK), reader.closed)  # control
    os.close(write)

    assert (False, True) == (reader.read(read, REPLY_CHUNK), reader.closed)
    os.close(read)
