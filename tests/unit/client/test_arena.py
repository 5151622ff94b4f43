"""Memory files of results: only those that are final are mapped."""

from __future__ import annotations

import copy
import fcntl
import gc
import mmap
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.client.arena import SEALS, map_arena, map_arenas
from leeward.client.results import MappedResult, result_of
from leeward.errors import BadReply
from leeward.spec.outcome import Outcome, Result
from leeward.wire.answers import encode_result
from leeward.wire.frames import HEADER, decode
from leeward.wire.replies import parse_reply


def memory_file(content: bytes, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.fixture
def no_leak() -> Iterator[None]:
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert before == sorted(os.listdir("/proc/self/fd"))


def test_a_sealed_file_is_mapped_read_only() -> None:
    """And stays while a view of it lives, whatever becomes of the descriptor."""
    fd = memory_file(b"hello")
    view = map_arena(fd, 5)
    os.close(fd)
    part = view[1:3]
    del view
    gc.collect()

    assert b"el" == bytes(part)
    assert part.readonly


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, SEALS])
def test_a_file_that_isnt_final_is_refused(missing: int) -> None:
    """Each seal counts: without one the bytes may go or change under the reader."""
    fd = memory_file(b"hello", SEALS & ~missing)
    with pytest.raises(BadReply, match="isn't sealed"):
        map_arena(fd, 5)
    if missing & fcntl.F_SEAL_WRITE:
        os.pwrite(fd, b"J", 0)  # control: it could have been written
    os.close(fd)


@pytest.mark.parametrize("size", [4, 6, 4096, 1 << 30])
def test_the_announced_size_must_be_the_real_one(size: int) -> None:
    """Reading past the end of a mapping is SIGBUS."""
    fd = memory_file(b"hello")
    with pytest.raises(BadReply, match="announced"):
        map_arena(fd, size)
    os.close(fd)


def test_a_file_that_is_no_memory_file_is_refused(tmp_path: Path, no_leak: None) -> None:
    """A file on disk can be truncated by any process that has it open."""
    (tmp_path / "x").write_bytes(b"hello")
    read, written = os.pipe()
    os.close(written)
    for fd in (os.open("/dev/null", os.O_RDONLY), read):
        with pytest.raises(BadReply, match="a memory file"):
            map_arenas([fd], [5])
    with pytest.raises(BadReply, match=r"a memory file|isn't sealed"):  # the one on a disk, the other on a tmpfs
        map_arenas([os.open(tmp_path / "x", os.O_RDONLY)], [5])


def test_all_descriptors_are_closed_when_one_is_bad(no_leak: None) -> None:
    """Good ones before and after it, too."""
    with pytest.raises(BadReply):
        map_arenas([memory_file(b"a"), memory_file(b"b", 0), memory_file(b"c")], [1, 1, 1])
    with pytest.raises(ValueError):
        map_arenas([memory_file(b"a")], [])


def received(**changes: object) -> Result:
    plain = Result(b"", b"", 3, Outcome.FINISHED, files={"inline": b"i"}, denied={"mount": 1})
    frame = encode_result(1, plain, stdout=(0, 0, 6), stderr=(0, 6, 4), files={"d/big": (1, 1, 2)}, arenas=(10, 4))
    reply = parse_reply(decode(frame[HEADER:]))
    return result_of(reply, [memory_file(b"outOUTerr!"), memory_file(b"file")])


def test_a_mapped_result_looks_like_any_other(no_leak: None) -> None:
    """Same type, same fields; bytes when asked for, views without a copy."""
    result = received()

    assert isinstance(result, Result)
    assert (b"outOUT", b"err!") == (result.stdout, result.stderr)
    assert isinstance(result.stdout, bytes)
    assert result.stdout is result.stdout  # copied once
    assert ("outOUT", "err!") == (result.stdout_text, result.stderr_text)
    assert b"OUT" == bytes(result.stdout_view[3:])
    assert isinstance(result.stdout_view.obj, mmap.mmap)
    assert (3, Outcome.FINISHED, {"mount": 1}) == (result.exit_code, result.outcome, result.denied)
    assert {"inline": b"i", "d/big": b"il"} == dict(result.files)
    assert "d/big (2 bytes)" in repr(result.files)
    assert "stdout=b'outOUT'" in repr(result)
    with pytest.raises(AttributeError):
        _ = result.stdoout  # type: ignore[attr-defined]  # that is the point
    with pytest.raises(AttributeError):
        result.exit_code = 5  # type: ignore[misc]  # frozen


def test_views_outlive_their_result(no_leak: None) -> None:
    """The mapping goes with the last of them."""
    view = received().stdout_view
    gc.collect()

    assert b"outOUT" == bytes(view)


def test_a_mapped_result_can_be_pickled_and_copied() -> None:
    """As a plain one: a mapping belongs to its process."""
    result = received()
    for other in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert type(other) is Result
        assert (b"outOUT", b"err!", {"inline": b"i", "d/big": b"il"}) == (other.stdout, other.stderr, other.files)
    assert isinstance(result, MappedResult)


def test_a_small_result_is_plain(no_leak: None) -> None:
    """Bytes as they came; a long output is cut in the repr only."""
    reply = parse_reply(decode(encode_result(1, Result(b"o" * 300, b"\xff", 0, Outcome.FINISHED))[HEADER:]))
    result = result_of(reply, [])

    assert type(result) is Result
    assert b"o" * 300 == bytes(result.stdout_view)
    assert "\ufffd" == result.stderr_text
    assert "and 100 bytes more" in repr(result)
