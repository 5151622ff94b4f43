"""
The fast path: what goes in, what comes out, and that everything else is left as it was.

A runner is four pipes here, and its control files are files.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kit import reactors
from kit.callers import JobCaller, RunnerHolder
from leeward._native.loop import CLOCK, Gauge, Offer
from leeward._native.supervisor import Thread
from leeward.daemon.loop import fast_path
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.daemon.run.execution import Execution
from leeward.errors import BadRequest, Busy, PeerError, Refused
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire.answers import encode_refused, encode_result
from leeward.wire.frames import decode
from leeward.wire.job_frames import NOTHING_FRAME, job_frame, reply_pieces, session_frame
from leeward.wire.requests import Execute, Ping, encode_request, parse_request

#: Whether this build has what the ring needs is features.py's to say.
pytestmark = pytest.mark.filterwarnings("error")

CODE = b'print("hello world")'


class Runner:
    """The job's side of one, and the daemon's."""

    def __init__(self, number: int, folder: Path, counter: Thread) -> None:
        self.number = number
        self.job_in, self.job = os.pipe()
        self.reply, self.reply_out = os.pipe()
        self.out, self.out_in = os.pipe()
        self.err, self.err_in = os.pipe()
        os.set_blocking(self.job_in, False)
        for fd in (self.job, self.reply, self.out, self.err):
            os.set_blocking(fd, False)
        self.files = {name: (folder / f"{number}.{name}") for name in ("time", "peak", "oom", "forks")}
        self.files["time"].write_text("user_usec 5\nusage_usec 2000500\nsystem_usec 7\n")
        self.files["peak"].write_text("4096000\n")
        self.files["oom"].write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
        self.files["forks"].write_text("max 2\n")
        self.gauges = {name: os.open(path, os.O_RDONLY) for name, path in self.files.items()}
        self.listener, self._far = os.pipe()  # one that nobody asks
        self.counter, self.slot = counter, counter.add(self.listener, number)

    def offer(self, **change: Any) -> Offer:
        fields: dict[str, Any] = {
            "number": self.number, "job": self.job, "reply": self.reply, "out": self.out, "err": self.err,
            "time": Gauge(self.gauges["time"], "usage_usec"), "peak": Gauge(self.gauges["peak"]),
            "oom": Gauge(self.gauges["oom"], "oom_kill"), "forks": Gauge(self.gauges["forks"], "max"),
            "time_unit": 1e-6, "time_before": 2.0, "oom_before": 3, "forks_before": 2,
            "supervisor": self.counter.handle, "denials": self.slot, "denials_before": 0}
        return Offer(**{**fields, **change})

    def code(self) -> bytes:
        """What is in its job pipe."""
        try:
            return os.read(self.job_in, 1 << 20)
        except BlockingIOError:
            return b""

    def end(self, out: bytes = b"", err: bytes = b"", reply: bytes = NOTHING_FRAME) -> None:
        for fd, data in ((self.out_in, out), (self.err_in, err), (self.reply_out, reply)):
            if data:
                os.write(fd, data)

    def close(self) -> None:
        self.counter.remove(self.slot)
        for fd in (self.job_in, self.job, self.reply, self.reply_out, self.out, self.out_in, self.err, self.err_in,
                   *self.gauges.values(), self._far):
            os.close(fd)


class Box:
    """A reactor, one client's connection, and what was told."""

    def __init__(self, way: str, folder: Path) -> None:
        self.reactor: NativeReactor = reactors.native(way)
        assert self.reactor.fast_path is not None
        self.fast_path = self.reactor.fast_path
        self.fast_path.enable(("landlock",))
        self.folder, self.counter = folder, Thread()
        self.runners: list[Runner] = []
        self.client, self.theirs = socket.socketpair()
        self.client.setblocking(False)
        self.theirs.setblocking(False)
        self.data: list[bytes] = []
        self.jobs: list[JobStart] = []
        self.rans: list[Ran] = []
        self.ends: list[tuple[Any, ...]] = []
        self.faults: list[Exception] = []
        self.refusals: list[int] = []
        self.stream = self.reactor.stream(self.theirs, self)
        self.stream.allow_fast_path(True)

    # As the receiver of the connection:

    def received(self, data: bytes) -> None:
        self.data.append(data)

    def failed(self, error: int) -> None:
        self.data.append(b"failed")

    def room(self) -> None: ...

    def sent(self, count: int) -> None: ...

    def job_started(self, start: JobStart) -> None:
        self.jobs.append(start)
        self.fast_path.expect(start.runner, self)

    def ran(self, ran: Ran) -> None:
        self.rans.append(ran)
        self.completed(ran.ended, ran.cpu_time, ran.memory_peak)

    def refused(self, count: int) -> None:
        self.refusals.append(count)

    def broken(self, error: Exception) -> None:
        self.faults.append(error)

    # As an execution:

    def completed(self, ended: float, cpu_time: float, memory_peak: int) -> None:
        self.ends.append((ended, cpu_time, memory_peak))

    def handed_over(self, reply: bytes) -> None:
        self.ends.append(("handed", reply))

    def runner(self, **change: Any) -> Runner:
        """One more, on offer."""
        made = Runner(len(self.runners) + 1, self.folder, self.counter)
        self.runners.append(made)
        assert self.fast_path.offer(made.offer(**change), self)
        return made

    def turns(self, count: int = 4) -> None:
        for _ in range(count):
            self.reactor.turn(0.0)

    def send(self, *messages: bytes) -> None:
        self.client.sendall(b"".join(messages))
        self.turns()

    def answer(self) -> bytes:
        self.turns()
        try:
            return self.client.recv(1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        if self.theirs.fileno() >= 0:
            self.stream.close()
        for runner in self.runners:
            self.fast_path.withdraw(runner.number)
        self.reactor.close()
        for runner in self.runners:
            runner.close()
        self.counter.stop()
        self.client.close()
        self.theirs.close()


@pytest.fixture(scope="module", params=reactors.WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """
    All tests run over epoll first: the kernel cleans up after a ring that was closed in this process's own waits, and
    interrupts them for that, so that a turn over epoll ends early.
    """
    made: str = request.param
    return made


@pytest.fixture
def box(way: str, tmp_path: Path) -> Iterator[Box]:
    made = Box(way, tmp_path)
    yield made
    made.close()


def request(number: int = 7, code: bytes = CODE) -> bytes:
    return encode_request(Execute(number, code=code))


@pytest.mark.parametrize("number", [1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 - 1])
@pytest.mark.parametrize("code", [b"", CODE, b"\0\xff" * 100, b"#" * 300, b"#" * 32768],
                         ids=["none", "short", "binary", "bin16", "most"])
def test_a_plain_request_goes_there_and_back(box: Box, number: int, code: bytes) -> None:
    """The runner gets the reference's frame; the client the reference's answer, byte for byte."""
    runner = box.runner()
    before = time.monotonic()

    box.send(request(number, code))
    frame = runner.code()
    runner.end(b"out\n", b"err\n")
    answer = box.answer()

    assert job_frame(Job(code=code)) == frame
    assert ([], [(number, code, 1, 0)]) == (box.data, [(job.request, job.code, job.runner, job.unsent)
                                                       for job in box.jobs])
    said = decode(answer[4:])["ok"]
    result = Result(b"out\n", b"err\n", 0, Outcome.FINISHED, duration=said["duration"], cpu_time=said["cpu_time"],
                    memory_peak=4096000, degraded=("landlock",))
    assert encode_result(number, result) == answer
    assert abs(said["cpu_time"] - 0.0005) < 1e-9
    (ended, cpu_time, peak), = box.ends
    assert (said["cpu_time"], 4096000) == (cpu_time, peak)
    assert before <= box.jobs[0].started <= ended <= time.monotonic()
    assert said["duration"] == ended - box.jobs[0].started


@pytest.mark.parametrize("out", [0, 1, 255, 256, 30_000])
def test_output_arrives_whole(box: Box, out: int) -> None:
    """In each of MessagePack's sizes."""
    runner = box.runner()
    box.send(request())
    runner.end(os.urandom(out), b"x" * 2000)

    said = decode(box.answer()[4:])["ok"]

    assert (out, 2000) == (len(said["stdout"]), len(said["stderr"]))


RAISED = reply_pieces(1, ("ValueError", "x", "Traceback\n"), None, {})[0]


@pytest.mark.parametrize("reply", [RAISED, reply_pieces(3, None, None, {})[0], NOTHING_FRAME[:-1], b"\xff" * 100,
                                   b"\0"], ids=["raised", "exit code", "cut", "noise", "one byte"])
def test_a_reply_with_something_to_tell_is_handed_over(box: Box, reply: bytes) -> None:
    """With what was read of it; the rest, and all output, is where it was."""
    runner = box.runner()
    box.send(request())

    runner.end(b"out", b"", reply)
    nothing = box.answer()

    (word, read), = box.ends
    assert (b"", "handed") == (nothing, word)
    rest = b"" if len(read) == len(reply) else os.read(runner.reply, 1 << 16)
    assert reply == read + rest
    assert b"out" == os.read(runner.out, 10)


def test_a_runner_that_goes_is_handed_over(box: Box) -> None:
    """Without a word: its pipe has an end."""
    runner = box.runner()
    box.send(request())

    os.close(runner.reply_out)
    box.turns()
    runner.reply_out = os.open("/dev/null", os.O_WRONLY)

    assert [("handed", b"")] == box.ends


@pytest.mark.parametrize(("name", "text"), [
    ("oom", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"), ("forks", "max 3\n"), ("forks", "nothing\n"),
    ("time", "user_usec 5\n"), ("peak", ""), ("peak", "many\n"), ("oom", "xoom_kill 3\n"), ("oom", "oom_killer 3\n"),
])
def test_counters_of_the_job_are_handed_over(box: Box, name: str, text: str) -> None:
    """A limit that was hit has to be reported; a missing figure isn't made up."""
    runner = box.runner()
    box.send(request())
    runner.files[name].write_text(text)

    runner.end(b"out")
    nothing = box.answer()

    assert (b"", [("handed", NOTHING_FRAME)]) == (nothing, box.ends)
    assert b"out" == os.read(runner.out, 10)


def test_denied_calls_are_handed_over(box: Box) -> None:
    """The supervisor's count isn't what it was; and neither is it where the supervisor knows no such job."""
    for change in ({"denials_before": 1}, {"denials": 999}):
        runner = box.runner(**change)
        box.send(request(runner.number))
        runner.end()
        assert b"" == box.answer()

    assert [("handed", NOTHING_FRAME)] * 2 == box.ends


def test_much_output_is_handed_over(box: Box) -> None:
    """None of it was read."""
    runner = box.runner()
    box.send(request())

    runner.end(b"o" * 20_000, b"e" * 20_000)
    nothing = box.answer()

    assert (b"", [("handed", NOTHING_FRAME)]) == (nothing, box.ends)
    assert (20_000, 20_000) == (len(os.read(runner.out, 1 << 16)), len(os.read(runner.err, 1 << 16)))


@pytest.mark.parametrize("message", [
    encode_request(Ping(3)), encode_request(Execute(3, module="this")), encode_request(Execute(3, code=CODE, name="x")),
    encode_request(Execute(3, code=CODE, stdin=b"x")), encode_request(Execute(3, code=CODE, limits={"time": 1})),
    request(3, b"#" * 32769), b"\0\0\0\0", b"\xff" * 4, b"\0\0\0\x01\xc1",
], ids=["ping", "module", "name", "stdin", "limits", "large", "empty", "huge", "noise"])
def test_other_requests_are_left_unread(box: Box, message: bytes) -> None:
    """And requests behind them, even if the fast path could take those: requests keep their order."""
    runner = box.runner()

    box.send(message, request())

    assert (message + request(), b"", []) == (b"".join(box.data), runner.code(), box.jobs)


@pytest.mark.parametrize("size", [1, 3, 4, 20, len(request()) - 1])
def test_a_request_in_pieces_is_the_owners(box: Box, size: int) -> None:
    """Who has a piece of it must have the rest."""
    runner = box.runner()

    box.send(request()[:size])
    box.send(request()[size:])

    assert (request(), b"", []) == (b"".join(box.data), runner.code(), box.jobs)


@pytest.mark.thorough
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 200), byte=st.integers(0, 255), more=st.binary(max_size=6), cut=st.integers(0, 6),
       number=st.sampled_from([1, 130, 300, 70000, 2**40]), code=st.sampled_from([b"", b"x", b"y" * 30, b"z" * 260]))
@example(at=0, byte=0, more=b"", cut=0, number=2**53 - 1, code=b"")
def test_the_fast_path_reads_every_request_as_the_reference_does(box: Box, at: int, byte: int, more: bytes, cut: int,
                                                                 number: int, code: bytes) -> None:
    """Of a damaged request the fast path takes the same code as the reference, or none."""
    payload = bytearray(request(number, code)[4:])
    payload[at % len(payload)] = byte
    payload = payload[:len(payload) - cut] + more
    message = len(payload).to_bytes(4, "big") + payload
    runner = box.runner()
    box.stream.allow_fast_path(True)
    box.data.clear()
    box.jobs.clear()

    box.send(message)
    box.fast_path.withdraw(runner.number)

    taken = [(job.request, job.code) for job in box.jobs]
    assert (b"" if taken else message) == b"".join(box.data)
    if taken:
        try:
            read = parse_request(decode(bytes(payload)))
        except (PeerError, BadRequest, Refused) as error:
            raise AssertionError(f"the reference refuses it: {error}") from error
        assert Execute(taken[0][0], code=taken[0][1]) == read
        assert job_frame(Job(code=taken[0][1])) == runner.code()


def test_a_batch_takes_the_offered_runners_and_leaves_the_rest(box: Box) -> None:
    """In order; requests that are left wait with the owner, and none overtakes them."""
    box.runner()
    box.runner()

    box.send(*(request(number) for number in range(1, 5)))
    box.runner()
    box.send(request(9))

    assert [1, 2] == [job.request for job in box.jobs]
    assert request(3) + request(4) + request(9) == b"".join(box.data)


def test_answers_come_as_jobs_end(box: Box) -> None:
    """Whichever is first."""
    runners = {runner.number: runner for runner in (box.runner(), box.runner())}
    box.send(request(1), request(2))
    first, second = box.jobs

    runners[second.runner].end(b"2")
    early = decode(box.answer()[4:])
    runners[first.runner].end(b"1")
    late = decode(box.answer()[4:])

    assert [(2, b"2"), (1, b"1")] == [(said["id"], said["ok"]["stdout"]) for said in (early, late)]


def test_an_id_used_twice_is_handed_over(box: Box) -> None:
    box.runner()
    box.runner()

    box.send(request(5), request(5))

    assert ([5], request(5)) == ([job.request for job in box.jobs], b"".join(box.data))


def test_two_clients_in_one_turn_each_keep_their_code(box: Box) -> None:
    """A job that is lost runs again from there: it must not be the other one's."""
    box.runner()
    box.runner()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    other = box.reactor.stream(theirs, box)
    other.allow_fast_path(True)
    box.turns()

    ours.sendall(request(2, b"theirs"))
    box.send(request(1, b"mine"))
    other.close()
    ours.close()
    theirs.close()

    assert {(1, b"mine"), (2, b"theirs")} == {(job.request, job.code) for job in box.jobs}


def filled(box: Box) -> None:
    """The owner sends more than the kernel takes."""
    with contextlib.suppress(BlockingIOError):
        while box.stream.send(memoryview(b"F" * (1 << 20))) is not None:
            pass
    box.turns()


def test_an_answer_never_lands_inside_a_frame_of_the_owners(box: Box) -> None:
    """Of which the kernel has taken a part."""
    runner = box.runner()
    box.send(request())
    filled(box)

    runner.end(b"out")
    got = b"".join(iter(box.answer, b""))

    assert (b"", [("handed", NOTHING_FRAME)]) == (got.strip(b"F"), box.ends)


def test_unread_answers_are_handed_to_the_owner(box: Box) -> None:
    """Who counts them, and reads no more requests then."""
    for number in range(1, 41):
        runner = Runner(number, box.folder, box.counter)
        box.runners.append(runner)
        assert box.fast_path.adopt(runner.offer(), ReplyAddress(box.stream.fd, number), time.monotonic())
        box.fast_path.expect(number, box)
        runner.end(b"o" * 30_000)
        box.turns()

    assert ("handed", NOTHING_FRAME) == box.ends[-1]
    assert box.stream.backlog < 250_000


def test_a_piece_that_comes_with_the_word_that_there_is_room(box: Box) -> None:
    """Who has it must have the rest, whatever he said in between."""
    def plain(_count: int = 0) -> None:
        box.stream.allow_fast_path(not box.data)

    def received(data: bytes) -> None:
        box.data.append(data)
        box.stream.allow_fast_path(False)

    runner = box.runner()
    box.stream.allow_fast_path(False)
    box.room, box.sent, box.received = plain, plain, received  # type: ignore[method-assign]
    with contextlib.suppress(BlockingIOError):
        while box.stream.send(memoryview(b"F" * (1 << 14))) is not None:
            pass
    with contextlib.suppress(BlockingIOError):
        while box.client.recv(1 << 20):
            pass

    box.send(b"\0\1")
    box.send(request())

    assert (b"\0\1" + request(), b"", []) == (b"".join(box.data), runner.code(), box.jobs)


def test_an_id_that_was_answered_in_this_turn_is_the_owners(box: Box) -> None:
    """He hears of the answer after what has begun, and would take it for the same id twice."""
    first, _ = box.runner(), box.runner()
    box.send(request(5))
    runner = next(each for each in box.runners if each.number == box.jobs[0].runner)
    assert first in box.runners

    runner.end()
    box.send(request(5))

    assert ([5], request(5), 1) == ([job.request for job in box.jobs], b"".join(box.data), len(box.ends))


def test_a_job_whose_pipe_took_it_in_part_gets_the_rest(box: Box) -> None:
    """And its reply is for its execution alone."""
    runner = box.runner()
    frame = job_frame(Job(code=CODE))
    os.write(runner.job, frame[:-5])
    leaf = SimpleNamespace(tick_interval=1.0, needs_ticks=False, usage=Usage,
                           killed_unseen=lambda _most: None)
    seen = SimpleNamespace(number=runner.number, job=runner.job, reply=runner.reply, leaf=leaf, cpu_before=0.0, largest=0,
                           variables={}, give_output=lambda: (os.dup(runner.out), os.dup(runner.err)), denied=dict)
    caller = JobCaller(Job(code=CODE))
    execution = Execution(box.reactor, seen, RunnerHolder(), caller,  # type: ignore[arg-type]  # as far as it goes
                          fast_path=box.fast_path)

    execution.begin(JobStart(7, CODE, runner.number, 0, time.monotonic(), unsent=5))
    code = runner.code()
    runner.end(b"out")
    box.turns()

    assert (frame, b"out") == (code, caller.reports[0].result and caller.reports[0].result.stdout)


def test_a_withdrawn_runner_gets_no_job(box: Box) -> None:
    """Before it had a job, and after."""
    idle, busy = box.runner(), box.runner()
    box.fast_path.withdraw(idle.number)
    box.send(request(1))
    box.fast_path.withdraw(busy.number)
    busy.end(b"out")

    nothing = box.answer()
    box.send(request(2))

    assert (b"", []) == (nothing, box.ends)
    assert (b"", [busy.number]) == (idle.code(), [job.runner for job in box.jobs])
    assert NOTHING_FRAME == os.read(busy.reply, 1000)
    assert request(2) == b"".join(box.data)


def test_a_dead_runner_is_passed_over(box: Box) -> None:
    """For the next one; and if there is none, for the owner."""
    alive, dead = box.runner(), box.runner()
    os.close(dead.job_in)
    dead.job_in = os.open("/dev/null", os.O_RDONLY)

    box.send(request(1), request(2))

    assert [(1, alive.number)] == [(job.request, job.runner) for job in box.jobs]
    assert request(2) == b"".join(box.data)


def test_an_offered_runner_that_dies_isnt_waited_for(box: Box) -> None:
    """The end of its reply pipe is no reply."""
    runner = box.runner()
    os.close(runner.reply_out)
    box.turns()
    runner.reply_out = os.open("/dev/null", os.O_WRONLY)

    box.send(request())

    assert ([], []) == (box.jobs, box.ends)
    assert request() == b"".join(box.data)


def test_a_client_that_goes_gets_no_answer(box: Box) -> None:
    """Neither does who has its descriptor's number next."""
    runner = box.runner()
    other, same = socket.socketpair()
    other.setblocking(False)
    same.setblocking(False)
    box.send(request())
    number = box.theirs.detach()
    box.stream.close()
    os.dup2(same.fileno(), number)  # which closes it
    same.close()
    box.theirs = socket.socket(fileno=number)
    box.stream = box.reactor.stream(box.theirs, box)
    runner.end(b"secret")
    box.turns()

    with other, pytest.raises(BlockingIOError):
        other.recv(100)
    assert [] == box.ends


def test_a_client_that_does_not_read_does_not_delay_others(box: Box) -> None:
    """What the kernel doesn't take is kept, and goes when there is room."""
    filled = 0
    while True:
        try:
            filled += box.theirs.send(b"x" * 4096)
        except BlockingIOError:
            break
    runner = box.runner()
    box.send(request())
    runner.end(b"out")
    box.turns()
    waits = box.stream.backlog

    assert 1 == len(box.ends)
    assert waits > 0
    got = b""
    while len(got) < filled + waits:
        got += box.answer()
    assert b"out" == decode(got[filled + 4:])["ok"]["stdout"]
    box.turns()
    assert 0 == box.stream.backlog


def test_an_answer_alone_may_go_the_short_way(box: Box) -> None:
    """The owner wrote the code himself."""
    runner = Runner(1, box.folder, box.counter)
    box.runners.append(runner)
    started = time.monotonic()
    assert box.fast_path.adopt(runner.offer(), ReplyAddress(box.theirs.fileno(), 11), started)
    box.fast_path.expect(runner.number, box)

    runner.end(b"out")
    said = decode(box.answer()[4:])

    assert (11, b"out") == (said["id"], said["ok"]["stdout"])
    assert said["ok"]["duration"] == box.ends[0][0] - started


def test_without_terms_there_is_no_short_way(tmp_path: Path) -> None:
    reactor = reactors.native(reactors.EPOLL)
    counter = Thread()
    runner = Runner(1, tmp_path, counter)
    assert reactor.fast_path is not None

    assert not reactor.fast_path.offer(runner.offer(), runner)
    assert not reactor.fast_path.adopt(runner.offer(), ReplyAddress(0, 1), 0.0)

    runner.close()
    counter.stop()
    reactor.close()


# --- in a session -------------------------------------------------------------


def turn(number: int = 7, session: int = 5, code: bytes = CODE) -> bytes:
    return encode_request(Execute(number, session=session, code=code))


def held(box: Box, session: int = 5, **change: Any) -> Runner:
    """A runner on offer to this session of the box's client."""
    return box.runner(session=session, stream=box.stream.fd, **change)


@pytest.fixture(params=["told", "held back"])
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's job is told at once when it has begun, or only when it is over."""
    monkeypatch.setattr(fast_path, "_HELD_S", 0.0 if "told" == request.param else 3600.0)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("session", [1, 127, 128, 65536, 2**53 - 1])
@pytest.mark.parametrize("code", [b"", CODE, b"#" * 32768], ids=["none", "short", "most"])
def test_a_sessions_requests_go_to_its_runner_one_after_the_other(box: Box, session: int, code: bytes) -> None:
    """
    The runner gets the reference's frame, the client the reference's answer. The figures of the next one begin where
    the others ended.
    """
    runner = held(box, session)
    for count, number in enumerate((1, 2, 300), 1):
        box.send(turn(number, session, code))
        assert session_frame(Job(code=code)) == runner.code()
        runner.end(b"out\n")
        answer = box.answer()
        said = decode(answer[4:])["ok"]
        result = Result(b"out\n", b"", 0, Outcome.FINISHED, duration=said["duration"], cpu_time=said["cpu_time"],
                        memory_peak=4096000, degraded=("landlock",))
        assert encode_result(number, result) == answer
        assert abs(said["cpu_time"] - 0.0005) < 1e-9
        assert (count, said["cpu_time"], 4096000) == (len(box.ends), *box.ends[-1][1:])
        runner.files["time"].write_text(f"usage_usec {2_000_500 + 500 * count}\n")

    assert [1, 2, 300] == [job.request for job in box.jobs + box.rans]
    assert {(1, session)} == {(job.runner, job.session) for job in box.jobs + box.rans}
    assert [] == (box.rans if box.jobs else box.jobs)
    assert [] == box.data


def test_a_begun_job_of_a_session_is_reported_before_other_events(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a descriptor's event, a timer, and deferred calls."""
    monkeypatch.setattr(fast_path, "_HELD_S", 3600.0)
    runner = held(box)
    read, write = os.pipe()
    heard: list[int] = []

    def act(_: object = None) -> None:
        heard.append(len(box.jobs))

    def at_a_time() -> None:
        box.reactor.at(0.0, act)

    def at_a_word() -> None:
        os.write(write, b"x")
        box.reactor.watch(read, select.EPOLLIN, act)

    for number, cause in enumerate((at_a_time, at_a_word, lambda: box.reactor.soon(act)), 1):
        box.send(turn(number))
        assert session_frame(Job(code=CODE)) == runner.code()
        assert number == len(box.jobs) + 1
        cause()
        while len(heard) < number:
            box.reactor.turn(60.0)
        box.reactor.forget(read)
        runner.end()
        assert b"" != box.answer()

    assert [1, 2, 3] == heard
    assert [1, 2, 3] == [job.request for job in box.jobs]
    assert ([], 3) == (box.rans, len(box.ends))
    os.close(read)
    os.close(write)


def test_a_begun_job_of_a_session_is_reported_when_it_is_due(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any other event: a turn waits no longer than that."""
    monkeypatch.setattr(fast_path, "_HELD_S", 0.1)
    held(box)
    box.client.sendall(turn(1))
    turns = 0
    while not box.jobs:
        box.reactor.turn(60.0)
        turns += 1

    assert [1] == [job.request for job in box.jobs]
    assert turns > 1


def test_only_due_jobs_of_many_are_reported(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_HELD_S", 3600.0)
    for session in (5, 6, 7):
        held(box, session)
        box.send(turn(session, session))
    first, second = (start.started for _, start in list(box.fast_path.held.values())[:2])
    box.fast_path.flush((first + second) / 2 + 3600.0)

    assert [5] == [job.request for job in box.jobs]
    assert second + 3600.0 == box.fast_path.due
    box.fast_path.flush()
    assert [5, 6, 7] == [job.request for job in box.jobs]
    assert box.fast_path.due is None


def test_a_session_whose_pipe_took_a_job_in_part_is_reported_at_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has to write the rest."""
    monkeypatch.setattr(fast_path, "_HELD_S", 3600.0)
    box.fast_path.job_started(box, JobStart(1, CODE, 1, 5, 0.0, unsent=3))

    assert [3] == [job.unsent for job in box.jobs]


def test_a_request_goes_to_its_own_session_alone(box: Box) -> None:
    """Not to a plain runner, nor to another session's, nor from another connection; a plain one not to a session's."""
    other, theirs = socket.socketpair()
    theirs.setblocking(False)
    stranger = box.reactor.stream(theirs, box)
    stranger.allow_fast_path(True)
    ours = held(box)
    for data in (turn(1, 6), request(2)):
        box.send(data)
        box.stream.allow_fast_path(True)
    other.sendall(turn(3))
    box.turns()
    stranger.allow_fast_path(True)
    plain = box.runner()
    for sock, data in ((other, turn(4)), (box.client, turn(5, 2**53 - 1))):
        sock.sendall(data)
        box.turns()
        box.stream.allow_fast_path(True)

    assert (b"", b"", []) == (ours.code(), plain.code(), box.jobs)
    assert [turn(1, 6), request(2), turn(3), turn(4), turn(5, 2**53 - 1)] == box.data
    box.send(turn(6), request(7))
    assert (session_frame(Job(code=CODE)), job_frame(Job(code=CODE))) == (ours.code(), plain.code())  # and to its own
    stranger.close()
    other.close()
    theirs.close()


def test_a_session_has_one_job_at_a_time(box: Box) -> None:
    """A second request behind the first is the owner's to refuse."""
    runner = held(box)
    box.send(turn(1) + turn(2))

    assert session_frame(Job(code=CODE)) == runner.code()
    assert ([1], [turn(2)]) == ([job.request for job in box.jobs], box.data)


@pytest.mark.parametrize("when", ["held", "after a job"])
def test_a_withdrawn_session_takes_no_job(box: Box, when: str) -> None:
    runner = held(box)
    if "after a job" == when:
        box.send(turn(1))
        runner.code()
        runner.end()
        box.answer()
    box.fast_path.withdraw(runner.number)

    box.send(turn(2))

    assert (b"", [turn(2)]) == (runner.code(), box.data)


def test_bytes_before_there_is_a_job_end_the_offer(box: Box) -> None:
    """They are on the reply pipe yet: who sends the next job finds them."""
    runner = held(box)
    os.write(runner.reply_out, NOTHING_FRAME)
    box.turns()
    box.send(turn(1))

    assert (b"", [turn(1)], []) == (runner.code(), box.data, box.ends)
    assert NOTHING_FRAME == os.read(runner.reply, 100)


def test_bytes_sent_between_jobs_do_not_answer_the_next_one(box: Box) -> None:
    """A job that said twice that it is over: the second word ends the offer, even if the next request is there already."""
    runner = held(box)
    box.send(turn(1))
    runner.code()
    runner.end(reply=NOTHING_FRAME * 2)
    box.client.sendall(turn(2))
    assert 1 == decode(box.answer()[4:])["id"]

    assert (b"", [turn(2)]) == (runner.code(), box.data)
    assert NOTHING_FRAME == os.read(runner.reply, 100)


def test_a_client_that_goes_takes_its_session_along(box: Box) -> None:
    """Whoever gets its descriptor's number is a stranger to it."""
    runner = held(box)
    fd = box.theirs.fileno()
    ours, theirs = socket.socketpair()
    box.stream.close()
    box.theirs.close()
    os.dup2(theirs.fileno(), fd)
    taken = socket.socket(fileno=fd)
    theirs.close()
    taken.setblocking(False)
    stranger = box.reactor.stream(taken, box)
    stranger.allow_fast_path(True)
    ours.sendall(turn(1))
    box.turns()

    assert (b"", [turn(1)]) == (runner.code(), box.data)
    stranger.close()
    taken.close()
    ours.close()


def test_an_offer_to_a_stream_that_is_none_is_refused(box: Box) -> None:
    runner = box.runner()
    box.fast_path.withdraw(runner.number)
    for stream in (-1, 1 << 20, runner.job):
        assert not box.fast_path.offer(runner.offer(session=5, stream=stream), box)


# --- a turn that goes on after a start or an answer ---------------------------

#: Nanoseconds; far beyond what any of these tests takes. A turn ends before that by what the test does.
FOR_EVER = 60 * 10**9


@contextlib.contextmanager
def job_side(runner: Runner, count: int) -> Iterator[None]:
    """Somebody who answers *count* jobs of this runner, each as soon as it comes."""
    def serve() -> None:
        os.set_blocking(runner.job_in, True)
        for _ in range(count):
            if not os.read(runner.job_in, 1 << 20):
                return
            runner.end(b"out\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join()  # a test that fails has others that wait for it


def test_an_answer_within_the_turn_that_started_its_job(box: Box) -> None:
    """The start and the end are reported together."""
    box.reactor._loop.linger(FOR_EVER, 0)
    runner = box.runner()
    with job_side(runner, 1):
        box.client.sendall(request(1))
        while not box.jobs:
            box.reactor.turn(60.0)

        assert 1 == len(box.ends)
    assert not box.data


def test_a_turn_doesnt_stay_with_a_job_that_goes_on(box: Box) -> None:
    runner = box.runner()
    box.client.sendall(request())

    while not box.jobs:
        box.reactor.turn(60.0)

    assert ([7], []) == ([job.request for job in box.jobs], box.ends)
    assert job_frame(Job(code=CODE)) == runner.code()


def test_a_turn_doesnt_stay_while_something_else_waits(box: Box) -> None:
    """Its owner hears of it at once, with the start, and of the answer in a later turn."""
    box.reactor._loop.linger(FOR_EVER, FOR_EVER)
    read, write = os.pipe()
    os.write(write, b"x")
    runner = box.runner()
    heard: list[int] = []
    box.reactor.watch(read, select.EPOLLIN, heard.append)
    box.client.sendall(request(1))
    while not box.jobs:
        box.reactor.turn(60.0)

    assert heard
    assert not box.ends
    box.reactor.forget(read)
    box.reactor._loop.linger(0, 0)
    with job_side(runner, 1):
        while not box.ends:
            box.reactor.turn(60.0)
    os.close(read)
    os.close(write)


@contextlib.contextmanager
def asking(box: Box, *requests: bytes) -> Iterator[list[int]]:
    """
    A client that sends each of *requests* when the one before is answered; after the last answer it ends the turn, by
    a descriptor that becomes readable. Yields which have.
    """
    read, write = os.pipe()
    heard: list[int] = []
    box.reactor.watch(read, select.EPOLLIN, heard.append)

    def ask() -> None:
        for each in requests:
            box.client.sendall(each)
            select.select([box.client], [], [])
            box.client.recv(1 << 16)
        os.write(write, b"x")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield heard
    thread.join()
    box.reactor.forget(read)
    os.close(read)
    os.close(write)


def test_the_next_request_within_the_same_turn(box: Box) -> None:
    """A client that asks again as soon as it is answered is served before the turn ends."""
    box.reactor._loop.linger(FOR_EVER, FOR_EVER)
    runners = [box.runner(), box.runner()]
    with job_side(runners[0], 1), job_side(runners[1], 1), asking(box, request(1), request(2)) as heard:
        while not heard and not box.jobs:
            box.reactor.turn(60.0)

        assert ([1, 2], 2) == ([job.request for job in box.jobs], len(box.ends))
    assert not box.data


def test_a_session_goes_on_within_the_turn(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next job needs nothing of Python's: a turn reports several, in order."""
    monkeypatch.setattr(fast_path, "_HELD_S", 3600.0)
    box.reactor._loop.linger(FOR_EVER, FOR_EVER)  # the client's next request may take a while
    runner = held(box)
    with job_side(runner, 3), asking(box, turn(1), turn(2), turn(3)) as heard:
        while not heard and not box.ends:
            box.reactor.turn(60.0)

        assert [1, 2, 3] == [job.request for job in box.rans]
    assert [] == box.data


def test_a_session_whose_jobs_show_things_gets_frames_that_say_so(box: Box) -> None:
    """The reference's frame for such a job, and the same answer."""
    runner = held(box, shows=True)
    box.send(turn(1))

    assert session_frame(Job(code=CODE, display=True)) == runner.code()
    assert session_frame(Job(code=CODE)) != session_frame(Job(code=CODE, display=True))


@pytest.mark.usefixtures("patience")
def test_a_runner_for_one_job_of_a_session(box: Box) -> None:
    """It gets a fresh job's frame, and its start is told at once; the next request is Python's."""
    runner = held(box, once=True)
    box.send(turn(1))
    assert job_frame(Job(code=CODE)) == runner.code()
    runner.end(out=b"x")
    box.answer()
    box.turns()
    assert ([1], [], 1) == ([job.request for job in box.jobs], box.rans, len(box.ends))
    box.send(turn(2))
    assert [turn(2)] == box.data


def test_processor_time_by_a_clock(box: Box) -> None:
    """That of a process that has no group of its own: the clock's id stands in place of the file."""
    spent = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
    runner = held(box, time=Gauge(time.CLOCK_PROCESS_CPUTIME_ID, CLOCK), time_unit=1e-9, time_before=spent)
    box.send(turn(1))
    runner.end(out=b"x")
    box.answer()
    box.turns()

    (_, cpu_time, _), = box.ends
    assert 0.0 < cpu_time <= time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) - spent


def test_a_clock_that_isnt_there_hands_the_job_over(box: Box) -> None:
    """Its process is gone, say."""
    runner = held(box, time=Gauge(12345, CLOCK), time_unit=1e-9)
    box.send(turn(1))
    runner.end(out=b"x")
    box.turns()

    assert [("handed", NOTHING_FRAME)] == box.ends


# --- refusals ------------------------------------------------------------------

WHY = Busy("all 4 workers are busy", retry_after=0.0025)


def frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("number", [1, 127, 128, 65536, 2**53 - 1])
def test_a_shed_connection_without_a_runner_is_refused_as_by_python(box: Box, number: int) -> None:
    """Byte for byte; Python gets the number of the refusals, and no request."""
    box.fast_path.refuse_with(WHY)
    box.fast_path.shed(box.stream.fd, True)

    box.send(request(number))

    assert (encode_refused(number, WHY), [1], [], []) == (box.answer(), box.refusals, box.data, box.jobs)


def test_a_shed_connection_gets_an_offered_runner(box: Box) -> None:
    """Of three requests that come together the first one."""
    box.fast_path.refuse_with(WHY)
    box.fast_path.shed(box.stream.fd, True)
    runner = box.runner()

    box.send(request(1), request(2), request(3))
    runner.end(b"out")
    said = {message["id"]: message for message in map(decode, (frame[4:] for frame in frames(box.answer())))}

    assert ([2], [1]) == (box.refusals, [job.request for job in box.jobs])
    assert (b"out", "busy", "busy") == (said[1]["ok"]["stdout"], said[2]["error"]["kind"], said[3]["error"]["kind"])


def test_only_code_alone_is_refused_there(box: Box) -> None:
    """What may be another thing than a job is Python's, and whatever comes behind it."""
    box.fast_path.refuse_with(WHY)
    box.fast_path.shed(box.stream.fd, True)
    rest = [encode_request(Execute(2, session=5, code=CODE)), encode_request(Ping(3)), request(4)]

    box.send(request(1), *rest)

    assert ([1], b"".join(rest)) == (box.refusals, b"".join(box.data))
    assert [encode_refused(1, WHY)] == frames(box.answer())


def test_a_connection_that_is_not_shed_any_more_is_not_refused(box: Box) -> None:
    box.fast_path.refuse_with(WHY)
    box.fast_path.shed(box.stream.fd, True)
    box.fast_path.shed(box.stream.fd, False)

    box.send(request(1))

    assert ([], request(1), b"") == (box.refusals, b"".join(box.data), box.answer())


def test_a_turn_refuses_a_bounded_number(box: Box) -> None:
    """The rest is Python's, which lets users have their turns."""
    box.fast_path.refuse_with(WHY)
    box.fast_path.shed(box.stream.fd, True)

    box.send(*map(request, range(1, 101)))

    assert ([64], b"".join(map(request, range(65, 101)))) == (box.refusals, b"".join(box.data))
    assert [encode_refused(number, WHY) for number in range(1, 65)] == frames(box.answer())


def test_a_client_that_reads_no_refusals_is_left_to_python(box: Box) -> None:
    """As one that reads no answers: what waits for it is bounded."""
    box.fast_path.refuse_with(WHY)
    box.fast_path.shed(box.stream.fd, True)
    number = 0
    with contextlib.suppress(BlockingIOError):
        for number in range(1, 100_000):
            box.client.sendall(request(number, b"#" * 200))
            box.turns(2)
            if box.data:
                break

    assert box.data
    assert box.stream.backlog <= 2 * (64 << 10)


# --- many ------------------------------------------------------------------------

#: Runners that are held, and how many times as long anything may take for them.
MANY, LONGER = 4000, 2.0


@pytest.fixture
def kept() -> Iterator[list[int]]:
    """Descriptors that end with the test."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("whose", ["another's", "its own"])
def test_runners_that_are_held_make_no_request_slower(box: Box, kept: list[int], whose: str) -> None:
    """
    A connection may have thousands of kernels. No request looks through them, of that connection's or of another's, nor
    does one that names a session, nor the end of one.
    """
    ours, theirs = socket.socketpair()
    other = box.reactor.stream(theirs, box)
    first, last = box.runner(), held(box)
    of = theirs.fileno() if whose == "another's" else box.stream.fd

    def took(runner: Runner, session: int) -> float:
        """The fastest of some rounds: a job there and back, in seconds."""
        times = []
        for number in range(1, 60):
            box.stream.allow_fast_path(True)
            start = time.perf_counter()
            box.client.sendall(turn(number, session) if session else request(number))
            box.reactor.turn(0.0)
            runner.code()
            runner.end()
            box.reactor.turn(0.0)
            times.append(time.perf_counter() - start)
            box.answer()
            if not session:
                assert box.fast_path.offer(runner.offer(), box)
        assert not box.data
        return min(times)

    def removed(numbers: range) -> float:
        """Seconds that the removal of one takes."""
        start = time.perf_counter()
        for number in numbers:
            box.fast_path.withdraw(number)
        return (time.perf_counter() - start) / len(numbers)

    def hold(numbers: range) -> None:
        for number in numbers:
            reply = os.dup(first.err)
            kept.append(reply)
            assert box.fast_path.offer(first.offer(number=1000 + number, reply=reply, session=1000 + number, stream=of),
                                       box)

    def slowness() -> float:
        """The fastest of some rounds of the same work, in seconds: other programs share the processor."""
        return min(timeit.repeat(lambda: sum(range(500)), number=1, repeat=100))

    alone, before = (took(first, 0), took(last, 5)), slowness()
    hold(range(50))
    few = min(removed(range(1000 + at, 1010 + at)) for at in range(0, 50, 10))
    hold(range(MANY))
    beside, since = (took(first, 0), took(last, 5)), slowness()
    many = min(removed(range(1000 + at, 1010 + at)) for at in range(0, 500, 10))
    other.close()
    ours.close()
    theirs.close()

    most = LONGER * max(1.0, since / before)
    assert all(longer < most * short for longer, short in zip(beside, alone, strict=True)), (beside, alone, most)
    assert many < most * few + 1e-6


def test_a_bug_in_the_count_of_refusals_meets_the_barrier(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has its refusal."""
    def fail(_count: int) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(box, "refused", fail)
    box.fast_path.refuse_with(WHY)
    box.fast_path.shed(box.stream.fd, True)
    caught: list[Exception] = []
    monkeypatch.setattr(box.reactor.barrier, "caught", lambda _callback, error: caught.append(error))

    box.send(request(1))

    assert [KeyError] == list(map(type, caught))
    assert encode_refused(1, WHY) == box.answer()
