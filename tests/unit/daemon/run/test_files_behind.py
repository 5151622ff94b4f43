"""Files that follow a reply, out of a pipe."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator

import msgpack
import pytest

from leeward.client.arena import SEALS
from leeward.daemon.run import reply
from leeward.daemon.run.reply import REPLY_CHUNK, ReplyReader
from leeward.daemon.run.report import Report
from leeward.daemon.serving.parcel import pack
from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire import job_frames as wire
from leeward.wire.frames import MAX_REPLY, decode

JOB = Job(code=b"", collect=("*",))
FILES = {"a": b"a" * wire.MAX_WITHIN, "none": b"", "b": b"b"}


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for fd in ends:
        os.close(fd)


def read(reader: ReplyReader, pipe: tuple[int, int], data: bytes) -> bool:
    """Feed *data* by the pipe, as it takes it; is the reply complete?"""
    view, complete = memoryview(data), False
    while view:
        view = view[os.write(pipe[1], view):]
        complete = reader.read(pipe[0], REPLY_CHUNK)
    return complete


def test_small_files_go_within_the_reply_and_larger_ones_behind() -> None:
    assert 1 == len(wire.reply_pieces(0, None, None, {"a": b"a" * wire.MAX_WITHIN, "none": b""}))
    head, *contents = wire.reply_pieces(0, None, None, FILES)

    assert list(FILES.values()) == contents
    assert len(head) < 100


def test_files_go_into_a_sealed_file_and_later_bytes_stay(pipe: tuple[int, int]) -> None:
    reader = ReplyReader(JOB)
    whole = b"".join(wire.reply_pieces(0, None, None, FILES))
    assert not read(reader, pipe, whole[:-1])  # control
    assert read(reader, pipe, whole[-1:] + b"x")

    files = reader.give_files()
    assert files is not None
    reader.close()
    assert (FILES, b"x") == (files.contents(), os.read(pipe[0], 10))
    assert SEALS == SEALS & fcntl.fcntl(files.arena.fd, fcntl.F_GET_SEALS)
    parcel = pack(1, Report(result=Result(b"", b"", 0, Outcome.FINISHED), files=files))
    assert {"a": [0, 0, wire.MAX_WITHIN], "none": b"", "b": [0, wire.MAX_WITHIN, 1]} == \
        decode(bytes(parcel.frame[4:]))["ok"]["files"]
    parcel.close()


def test_files_go_in_the_reply_where_it_may_have_them(pipe: tuple[int, int]) -> None:
    reader = ReplyReader(JOB)
    read(reader, pipe, b"".join(wire.reply_pieces(0, None, None, FILES)))
    files = reader.give_files()
    assert files is not None
    parcel = pack(1, Report(result=Result(b"", b"", 0, Outcome.FINISHED), files=files), "inline")

    assert (FILES, []) == (decode(bytes(parcel.frame[4:]))["ok"]["files"], parcel.arenas)
    assert -1 == files.arena.fd


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM])
def test_files_stay_in_memory_where_no_memory_file_can_be_made(pipe: tuple[int, int], error: int,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """If a reply has room for them."""
    def none(_name: str) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(reply, "memory_file", none)
    reader = ReplyReader(JOB)

    assert read(reader, pipe, b"".join(wire.reply_pieces(0, None, None, FILES)))
    assert (FILES, None) == (reader.parsed().files, reader.give_files())
    with pytest.raises(OSError, match=os.strerror(error)):
        reply.FilesBehind({"a": MAX_REPLY + 1})


def test_more_than_a_job_may_bring_is_refused_before_any_of_it_comes(pipe: tuple[int, int]) -> None:
    for size, refused in ((JOB.limits.files, False), (JOB.limits.files + 1, True)):
        body = msgpack.packb({"exit": 0, "error": None, "limit": None, "files": {}, "behind": {"a": size}})
        reader = ReplyReader(JOB)
        os.write(pipe[1], wire.HEADER.pack(len(body)) + body)
        if refused:
            with pytest.raises(PeerError, match=f"files of {size} bytes"):
                reader.read(pipe[0], REPLY_CHUNK)
        else:
            assert not reader.read(pipe[0], REPLY_CHUNK)
        reader.close()


def test_unrequested_files_are_an_error(pipe: tuple[int, int]) -> None:
    reader = ReplyReader(Job(code=b""))

    assert read(reader, pipe, wire.reply_pieces(0, None, None, FILES)[0])
    with pytest.raises(PeerError, match="files that nobody asked for"):
        reader.parsed()


def test_an_end_in_the_middle_of_them_is_noticed() -> None:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    reader = ReplyReader(JOB)
    assert not read(reader, ends, b"".join(wire.reply_pieces(0, None, None, FILES))[:-1])
    assert not reader.closed
    os.close(ends[1])

    assert (False, True, False) == (reader.read(ends[0], REPLY_CHUNK), reader.closed, reader.complete)
    reader.close()
    os.close(ends[0])
