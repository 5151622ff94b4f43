"""Output: small streams inline, large ones in a sealed memfd, and the limit that both share."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import leeward
from kit import features
from kit.reference_reactor import ReferenceReactor
from leeward.daemon.run.output import Output, OutputWatch, unread
from leeward.daemon.run.report import PLACEMENTS, inline_bytes
from leeward.daemon.run.starvation import busy
from leeward.wire.frames import MAX_REPLY

INLINE = PLACEMENTS["auto"].output


@dataclass
class Job:
    """The write ends that a job would have."""

    out: int
    err: int
    output: Output

    def write(self, fd: int, data: bytes) -> None:
        """As a job would, the daemon draining whenever the pipe is full."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view):]
            except BlockingIOError:
                self.output.drain(self.output.out)
                self.output.drain(self.output.err)
                if self.output.exceeded:
                    return


def _job(limit: int, inline: int = INLINE, memory: int = 1 << 30, *, cuts: bool = False) -> Job:
    out, err = os.pipe(), os.pipe()
    for fd in (*out, *err):
        os.set_blocking(fd, False)
    return Job(out[1], err[1], Output(out[0], err[0], limit, inline=inline, memory=memory, cuts=cuts))


@pytest.fixture
def job() -> Iterator[Job]:
    made = _job(4 * INLINE)
    yield made
    made.output.close()
    os.close(made.out)
    os.close(made.err)


def test_a_little_stays_inline(job: Job):
    job.write(job.out, b"out")
    job.write(job.err, b"err")
    job.output.take_rest()

    assert (b"out", b"err") == (job.output.out.head, job.output.err.head)
    assert -1 == job.output.seal()


def test_much_goes_to_a_sealed_memfd_byte_for_byte(job: Job):
    data = bytes(range(256)) * (2 * INLINE // 256)

    job.write(job.out, data)
    job.write(job.err, b"small")
    job.output.take_rest()
    memfd = job.output.seal()

    stream = job.output.out
    assert (data, b"") == (os.pread(memfd, stream.length, stream.offset), stream.head)
    assert b"small" == job.output.err.head
    wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    exec_too = 0x20 if features.is_met("kernel>=6.3") else 0  # F_SEAL_EXEC: nobody can make a program of it
    assert wanted | exec_too == fcntl.fcntl(memfd, fcntl.F_GET_SEALS)
    with pytest.raises(PermissionError):
        os.pwrite(memfd, b"x", 0)
    os.close(memfd)


def test_the_streams_do_not_mix(job: Job):
    job.write(job.out, b"o" * (2 * INLINE))
    job.write(job.err, b"e" * (2 * INLINE - 1))
    job.output.take_rest()
    memfd = job.output.seal()

    out, err = job.output.out, job.output.err
    assert {ord("o")} == set(os.pread(memfd, out.length, out.offset))
    assert {ord("e")} == set(os.pread(memfd, err.length, err.offset))
    assert out.offset + out.length <= err.offset
    assert not job.output.truncated
    os.close(memfd)


@pytest.mark.parametrize("limit", [0, 1, 4095, INLINE, INLINE + 1, 3 * INLINE + 5])
def test_the_limit_cuts_at_its_byte(limit: int):
    job = _job(limit)

    job.write(job.out, b"x" * (limit + 1))
    job.output.take_rest()

    assert (limit, True) == (job.output.out.length + job.output.err.length, job.output.truncated)
    job.output.close()


@pytest.mark.parametrize("limit", [0, 7, INLINE, 2 * INLINE])
def test_just_the_limit_is_not_too_much(limit: int):
    job = _job(limit)

    job.write(job.out, b"x" * limit)
    job.output.take_rest()

    assert (limit, False) == (job.output.out.length, job.output.truncated)
    job.output.close()


def test_end_of_file_is_reported():
    job = _job(100)
    os.close(job.out)

    assert not job.output.drain(job.output.out)
    assert job.output.drain(job.output.err)
    job.output.close()


def test_a_flood_waits_its_turn(job: Job):
    """One call of drain takes a bounded piece, however fast the writer is."""
    fcntl.fcntl(job.out, fcntl.F_SETPIPE_SZ, 1 << 20)
    taken = job.output.out.length
    job.write(job.out, b"x" * (3 * INLINE))

    job.output.drain(job.output.out)

    assert job.output.out.length - taken <= (1 << 20) + INLINE


def test_one_stream_moves_out_when_both_are_too_much_together(job: Job):
    job.write(job.err, b"e" * 100)
    job.write(job.out, b"o" * INLINE)
    job.output.take_rest()
    memfd = job.output.seal()

    out, err = job.output.out, job.output.err
    assert 1 == out.spilled + err.spilled
    assert len(out.head) + len(err.head) <= INLINE
    assert (INLINE, 100) == (out.length, err.length)
    os.close(memfd)


@pytest.mark.parametrize("text", [b"", b"x"])
def test_by_memfd_alone_every_byte_is_in_it(text: bytes):
    job = _job(100, inline_bytes("memfd"))
    job.write(job.out, text)
    job.output.take_rest()
    memfd = job.output.seal()

    assert (bool(text), b"") == (memfd >= 0, job.output.out.head)
    if memfd >= 0:
        assert (text, "/memfd:leeward_results (deleted)") == (
            os.pread(memfd, 10, 0)[:job.output.out.length], os.readlink(f"/proc/self/fd/{memfd}"))
        os.close(memfd)
    job.output.close()


def test_inline_holds_as_much_as_a_reply_has_room_for():
    most = inline_bytes("inline")
    for size in (most, most + 1):
        job = _job(2 * most, most)
        job.write(job.out, bytes(size))
        job.output.take_rest()
        memfd = job.output.seal()

        assert (size > most) == (memfd >= 0) == job.output.out.spilled
        if memfd >= 0:
            os.close(memfd)
        job.output.close()
    assert inline_bytes("inline", files=True) < most < MAX_REPLY


@pytest.mark.parametrize("before", [0, 100, INLINE, 3 * INLINE])
def test_our_frames_are_taken_out_of_a_faults_text(before: int) -> None:
    """In memory and in a memfd, where nothing of them is left behind the new end."""
    ours = Path(leeward.__file__).parent / "inside/main.py"
    text = (b"Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
            b'  File "<string>", line 1 in f\n  File "%s", line 2 in serve\n' % bytes(ours))
    job = _job(8 * INLINE)
    job.write(job.out, b"out")
    job.write(job.err, b"e" * before + b"\n" + text)
    job.output.take_rest()

    fault = job.output.take_fault()
    memfd = job.output.seal()

    out, err = job.output.out, job.output.err
    left = b"e" * before + b"\n" + text[:text.rindex(b"  File")]
    assert (', in f ("<string>", line 1)', left[before + 1:].decode()) == (fault.place, fault.trace)
    assert (3, len(left)) == (out.length, err.length)
    if memfd < 0:
        assert (b"out", left) == (out.head, err.head)
    else:
        assert left + bytes(len(text)) == os.pread(memfd, len(left) + len(text), err.offset)
        os.close(memfd)
    job.output.close()


@pytest.mark.parametrize("pipes", ["one more", "none"])
def test_a_flood_arrives_whole_by_another_pipe_and_without_one(pipes: str, monkeypatch: pytest.MonkeyPatch):
    """Byte for byte, cut at the limit, and nothing stays open."""
    if "none" == pipes:
        def refuse(flags: int) -> tuple[int, int]:
            raise OSError(24, "too many open files")
        monkeypatch.setattr(os, "pipe2", refuse)
    before = set(os.listdir("/proc/self/fd"))
    data = os.urandom(1 << 20) * 5
    job = _job(len(data) - 77)

    job.write(job.out, data)
    job.output.take_rest()
    memfd = job.output.seal()

    assert job.output.truncated
    assert data[:-77] == os.pread(memfd, len(data), 0)[:job.output.out.length]
    os.close(memfd)
    job.output.close()
    os.close(job.out)
    os.close(job.err)
    assert before == set(os.listdir("/proc/self/fd"))


def test_a_memfd_that_takes_no_more_ends_it(monkeypatch: pytest.MonkeyPatch):
    """What was on its way is given up, with the pipe that it was in."""
    job = _job(8 << 20)
    job.write(job.out, bytes(1 << 20))
    splice = os.splice

    def full(source: int, target: int, count: int, **options: Any) -> int:
        if target == job.output.memfd:
            raise OSError(28, "no space left on device")
        return splice(source, target, count, **options)

    monkeypatch.setattr(os, "splice", full)
    os.write(job.out, b"x")
    with pytest.raises(OSError, match="no space"):
        job.output.drain(job.output.out)

    assert (-1, -1) == job.output._behind
    job.output.close()
    os.close(job.out)
    os.close(job.err)


@pytest.mark.parametrize(("memory", "room"), [(16 << 20, 128 << 10), (256 << 20, 1 << 20)])
def test_the_pipe_of_a_flood_has_its_share_of_the_jobs_memory(memory: int, room: int):
    job = _job(8 << 20, memory=memory)
    try:
        fcntl.fcntl(job.out, fcntl.F_SETPIPE_SZ, room)
    except PermissionError:
        room = fcntl.fcntl(job.out, fcntl.F_GETPIPE_SZ)  # this user has his share of pipes already
    fcntl.fcntl(job.out, fcntl.F_SETPIPE_SZ, 64 << 10)

    job.write(job.out, bytes(1 << 20))

    assert room == fcntl.fcntl(job.out, fcntl.F_GETPIPE_SZ)
    job.output.close()
    os.close(job.out)
    os.close(job.err)


def test_what_was_taken_can_be_looked_at(job: Job) -> None:
    """From any byte on, in memory and in the memory file, 64 KiB at a time."""
    output = job.output
    job.write(job.out, b"abc")
    assert b"" == output.since(output.out, 0)  # it is in the pipe still
    output.take_rest()
    assert [b"abc", b"c", b"", b""] == [output.since(output.out, start) for start in (0, 2, 3, 1 << 40)]

    large = os.urandom(3 * INLINE)
    job.write(job.out, large)
    output.take_rest()
    found = b""
    while piece := output.since(output.out, len(found)):
        assert len(piece) <= 64 << 10
        found += piece
    assert b"abc" + large == found


def test_the_text_of_a_fault_is_held_back(job: Job) -> None:
    """Of stderr alone: the end of the job decides what is told of it."""
    text = b"before\nFatal Python error: Aborted\n\nCurrent thread"
    job.write(job.out, text)
    job.write(job.err, text)
    job.output.take_rest()

    assert text == job.output.since(job.output.out, 0)
    assert b"before\n" == job.output.since(job.output.err, 0)


# --- output that is cut ---------------------------------------------------------------


def _whole(job: Job) -> tuple[bytes, bytes]:
    """Both streams at the end, from memory or from the file."""
    job.output.take_rest()
    job.output.join()
    memfd = job.output.seal()
    found = [bytes(stream.head) if not stream.spilled else os.pread(memfd, stream.length, stream.offset)
             for stream in (job.output.out, job.output.err)]
    if memfd >= 0:
        os.close(memfd)
    job.output.close()
    return found[0], found[1]


@pytest.mark.parametrize("limit", [0, 1, 10, 4096, INLINE, 3 * INLINE + 5])
@pytest.mark.parametrize("more", [0, 1, 100_000])
def test_cut_output_has_its_beginning_and_its_end(limit: int, more: int):
    """No more than the limit and a note; all of it, where the limit isn't exceeded."""
    job = _job(limit, cuts=True)
    data = bytes(33 + at % 90 for at in range(limit + more))

    job.write(job.out, data)
    out, err = _whole(job)

    left_out = job.output.omitted[0]
    assert (more > 0, more) == (job.output.truncated, left_out)
    head = limit - limit // 2
    note = b"\n[%d bytes left out]\n" % left_out if left_out else b""
    assert data[:head] + note + data[head + left_out:] == out
    assert b"" == err
    assert not job.output.exceeded


def test_an_error_after_a_flood_is_kept():
    job = _job(10_000, cuts=True)

    job.write(job.out, b"y" * 500_000)
    job.write(job.err, b"the reason")
    job.write(job.out, b"y" * 500_000 + b"end")
    out, err = _whole(job)

    assert b"the reason" == err
    assert out.endswith(b"end")
    assert len(out) + len(err) <= 10_000 + 64


def test_a_live_reader_gets_what_the_result_begins_with():
    """What may be left out isn't shown before the end."""
    job = _job(1000, cuts=True)
    job.write(job.out, bytes(33 + at % 90 for at in range(5000)))
    job.output.drain(job.output.out)
    early = job.output.since(job.output.out, 0)

    assert 500 == len(early)
    assert b"" == job.output.since(job.output.out, 500)
    assert _whole(job)[0].startswith(early)


@pytest.mark.parametrize("asleep", [False, True])
def test_a_job_waits_at_a_full_pipe_while_this_thread_is_busy(job: Job, asleep: bool) -> None:
    """And not while it sleeps, which the pipe's first byte would have ended: it was empty until then."""
    waited: list[float] = []
    reactor = ReferenceReactor()
    execution = SimpleNamespace(broken=None, counts_waiting=True, stopped=False, over=False, waited_for_us=waited.append,
                                take_back=lambda: None)
    began = time.monotonic()
    watch = OutputWatch(reactor, job.output, execution, reactor.now())  # type: ignore[arg-type]  # as far as it is used
    assert watch.take_full()
    assert [] == waited
    until = busy() + 0.05
    while not asleep and busy() < until:
        pass
    if asleep:
        select.select([], [], [], 0.05)
    job.write(job.out, b"x" * (64 << 10))
    watch.take_full()
    watch.close()
    reactor.close()

    assert (1, 0) == (len(waited), unread(job.output.out.fd))
    assert waited[0] <= time.monotonic() - began - 0.05 if asleep else waited[0] >= 0.05


def test_one_turn_of_the_loop_reads_little_of_what_is_left_out():
    job = _job(1000, cuts=True)
    job.write(job.out, b"x" * 2000)
    job.output.drain(job.output.out)
    fcntl.fcntl(job.out, fcntl.F_SETPIPE_SZ, 1 << 20)
    filled = os.write(job.out, b"x" * (1 << 20))
    job.output.drain(job.output.out)
    left = unread(job.output.out.fd)
    job.output.close()

    assert 1 << 20 == filled
    assert (1 << 20) - 65536 == left
