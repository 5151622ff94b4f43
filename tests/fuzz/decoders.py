"""
Feeds hostile bytes to every decoder that is Python: `./dev fuzz [RUNS]` does, so many to each target.

Runs in:   anybody's shell, and the tests; needs nothing of the kernel's.

A decoder gives a value or its one typed error. Anything else is a find: another exception, a value of the wrong type,
or an answer that depends on how the bytes were cut. Inputs are valid ones with some changes: bytes, whole values
of MessagePack or lines of a request replaced, removed, doubled or moved; and bytes by chance. The seed is printed with
a find, and repeats the run.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgpack

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for those without leeward in their environment
sys.path.append(str(Path(__file__).resolve().parents[1]))  # tests/kit

import egress_decoders
import image_decoders
import web_decoders
from example_requests import BOX, REQUESTS

from leeward.client import sandbox_calls
from leeward.client.conversation import Conversation, refusal
from leeward.daemon.config import Config
from leeward.daemon.serving.intake import job_of
from leeward.daemon.telling import exporter
from leeward.errors import BadReply, BadRequest, PeerError, Refused, SandboxOver
from leeward.isolation.plan import ZygotePlan
from leeward.spec.job import Job
from leeward.spec.outcome import JobError, LeftOut, LeftOutReason, Limit, Outcome, Result
from leeward.wire import control, function_frames, outline, records, sandbox_replies
from leeward.wire import job_frames as wire_job
from leeward.wire.answers import details_of, encode_ok, encode_refusal, encode_result, result_fields
from leeward.wire.frames import FrameReader, decode, decode_in_place, frame
from leeward.wire.job_frames import MAX_FILES, read_reply, reply_pieces
from leeward.wire.outline import code_alone
from leeward.wire.replies import parse_reply, parse_result
from leeward.wire.requests import (
    Execute,
    Slot,
    encode_request,
    parse_request,
    request_id,
)
from leeward.wire.sandbox_requests import (
    ProcessRun,
    ProcessStart,
    SandboxExecute,
    SandboxExtend,
    SandboxRequest,
)
from leeward.wire.template import parse_by_template

HEADER = 4

#: What values are replaced by: each kind of MessagePack, at its borders, and some that are cut short.
TOKENS = (
    *(msgpack.packb(value) for value in (
        None, True, False, 0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63,
        2**64 - 1, -1, -32, -33, -128, -129, -2**31, -2**63, 0.0, -0.0, 1.5, 1e308, float("inf"), float("nan"), "", "x",
        "id", "op", "é", "a/b", "../x", "\0", "memory", "x" * 40, b"", b"x", b"\xff" * 40, [], {}, [[]], [{}], {"a": 1},
        {"": None}, [None] * 3, ["a", "b", "c"], [0, 0, 1], {"time": 1}, {"memory": 2**70 % 2**64},
        msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 1))),
    msgpack.packb({1: 2}), b"\x81\x80\x80", b"\x81\x90\x01", b"\xa1\xff", b"\xa2\xed\xa0", b"\xa3\xed\xa0\x80", b"\xc1",
    b"\xc4", b"\xd9\xff", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xde\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\x91" * 40, b"\x81\xa1a" * 40, b"\xc7\x00\xff", b"\xc7\x0c\xff",
)


def spans(data: bytes, at: int = 0) -> list[tuple[int, int]]:
    """Where each value in a valid MessagePack starts and ends."""
    found: list[tuple[int, int]] = []

    def walk(at: int) -> int:
        start, first = at, data[at]
        at += 1
        entries = 0
        if first <= 0x7F or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
            pass
        elif first <= 0x8F:
            entries = 2 * (first & 15)
        elif first <= 0x9F:
            entries = first & 15
        elif first <= 0xBF:
            at += first & 31
        elif first in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
            width = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}[first]
            at += width + int.from_bytes(data[at:at + width], "big")
        elif first in (0xDC, 0xDD, 0xDE, 0xDF):
            width = 2 if first in (0xDC, 0xDE) else 4
            entries = int.from_bytes(data[at:at + width], "big") * (2 if first >= 0xDE else 1)
            at += width
        else:
            at += {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}[first]
        for _ in range(entries):
            at = walk(at)
        found.append((start, at))
        return at

    walk(at)
    return found


class Mutator:
    """Inputs without end, from *seeds* with the spans of their values."""

    def __init__(self, seeds: list[tuple[bytes, list[tuple[int, int]]]], tokens: tuple[bytes, ...], seed: int) -> None:
        self._seeds, self._tokens = seeds, tokens
        self._values = [data[start:end] for data, places in seeds for start, end in places]
        source = random.Random(seed)
        self._bits, self._bytes = source.getrandbits, source.randbytes

    def _below(self, bound: int) -> int:
        return (self._bits(32) * bound) >> 32

    def one(self) -> bytes:
        below = self._below
        choice = below(64)
        if not choice:
            return self._bytes(below(64))
        data, places = self._seeds[below(len(self._seeds))]
        # One value first: behind it the spans don't fit any more.
        if choice < 48:
            start, end = places[below(len(places))]
            if choice < 24:
                value = self._tokens[below(len(self._tokens))]
            elif choice < 36:
                value = self._values[below(len(self._values))]
            elif choice < 42:
                value = b""
            else:
                value = data[start:end] * 2
            data = data[:start] + value + data[end:]
            if choice & 1:
                return data
        made = bytearray(data)
        for _ in range(1 + below(3)):
            if not made:
                break
            at, kind = below(len(made)), below(8)
            if kind < 3:
                made[at] = self._bits(8)
            elif kind < 5:
                made[at] ^= 1 << below(8)
            elif kind < 6:
                del made[at:at + 1 + below(8)]
            elif kind < 7:
                token = self._tokens[below(len(self._tokens))]
                made[at:at] = token
            else:
                del made[at:]
        return bytes(made)


class Target:
    """One decoder: what it starts from, and what must hold of each input."""

    tokens: tuple[bytes, ...] = TOKENS
    starts: tuple[bytes, ...] = ()

    def seeds(self) -> list[tuple[bytes, list[tuple[int, int]]]]:
        return [(data, spans(data)) for data in self.starts]

    def feed(self, data: bytes) -> bool:
        """Was it taken? Raises for what should never be."""
        raise NotImplementedError


class Request(Target):
    """What the daemon does with a client's frame, as far as a job."""

    starts = tuple(encode_request(request)[HEADER:] for request in (
        *REQUESTS,
        Execute(3, module="json.tool", name="x.py", args=("a", "b"), env={"A": "b"}, files={"d/f": b"x", "g": b""},
                stdin=b"in", collect=("*.{png,csv}", "/workspace/d/", "./e", "."),
                limits={"memory": 1 << 28, "processes": 4, "time": 2}),
        Slot(10, 1, 100), SandboxExtend(15, BOX, idle=3.0, lifetime=4),
        SandboxExecute(24, BOX, kernel=1, code=b"x", name="x.py", env={"A": "b"}, files={"d/f": b"x"}, collect=("*",))))
    config = Config()

    def feed(self, data: bytes) -> bool:
        outlines, alone = (outline.whole(data), outline.unread(data)), code_alone(data)
        try:
            [payload] = FrameReader().feed(frame(data))
            message = decode(payload)
            # By their bytes, since NaN isn't equal to itself.
            assert msgpack.packb(message) == msgpack.packb(decode_in_place(memoryview(payload)))
            number = request_id(message)
        except PeerError:
            assert alone is None
            return False
        assert {0, number} >= set(outlines), outlines  # the short look, where it sees a request, sees the same
        try:
            request = parse_request(message)
            assert alone in (None, request)  # the comparison with a template gives the same, or nothing
            if isinstance(request, Execute):
                job = job_of(request, self.config, self.config.limits)
                assert isinstance(job, Job)
                assert type(job.limits.time) is float
                assert type(job.limits.memory) is int
        except (BadRequest, Refused):
            assert alone is None
            return False
        assert type(request.id) is int
        if isinstance(request, SandboxRequest):
            self._look(request)
        return True

    @staticmethod
    def _look(request: SandboxRequest) -> None:
        """What is done with the fields: nothing of them is left to be checked."""
        for name in ("idle", "lifetime", "wait"):
            value = getattr(request, name, 0.0)
            assert type(value) is float
            assert 0 <= value < float("inf")
        for name in ("process", "after", "signal"):
            assert type(getattr(request, name, 0)) is int
        assert len(getattr(request, "sandbox", BOX)) == len(BOX)
        if isinstance(request, (ProcessRun, ProcessStart)):
            assert bool(request.argv) != bool(request.shell) or not (request.argv or request.shell)
            assert all(type(word) is str and "\0" not in word and word.encode() is not None for word in request.argv)
            request.shell.encode()
            request.cwd.encode()


class Stream(Target):
    """Frames cut anywhere: the same payloads come out, or the same error."""

    limit = 300

    def __init__(self) -> None:
        self._cuts = random.Random(0)

    def seeds(self) -> list[tuple[bytes, list[tuple[int, int]]]]:
        frames = [frame(data) for data in Request.starts]
        joined = [b"".join(some) for some in (
            frames[:2], frames[3:6], frames[2:], frames[-1:], [b"\0\0\0\0", *frames[:1]])]
        return [(data, [(at, at + 4) for at in range(0, len(data) - 4, 7)]) for data in joined]

    tokens = (b"\0\0\0\0", b"\0\0\0\1", b"\0\0\1\x2c", b"\0\0\1\x2d", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
              b"", b"\0")

    def feed(self, data: bytes) -> bool:
        whole = self._read([data])
        at = int(self._cuts.random() * (len(data) + 1))
        step = 1 + int(self._cuts.random() * 9)
        pieces = [data[:at], data[at:]] if step > 4 else [data[i:i + step] for i in range(0, len(data), step)]
        assert whole == self._read(pieces)
        return not whole[1]

    def _read(self, pieces: list[bytes]) -> tuple[bytes, str, int]:
        """Payloads, error, and what is held; of payloads before an error some may be lost in one feed."""
        reader, payloads = FrameReader(self.limit), []
        try:
            for piece in pieces:
                payloads += reader.feed(piece)
                assert reader.held <= self.limit + HEADER + len(piece)
        except PeerError as error:
            return b"", str(error), 0
        return b"|".join(payloads), "", reader.held


class JobReply(Target):
    """What a job writes to its reply pipe."""

    starts = tuple(reply_pieces(*given)[0][HEADER:] for given in (
        (0, None, None, {}), (255, ("ValueError", "no", "Traceback"), "memory", {"a/b": b"x", "é": b""}),
        (3, None, "files", {"x": b"y" * 40}), (1, ("E", "\udc80", ""), None, {}),
        (0, None, None, {}, [("*.png", "no_match"), ("a\nb", "name"), ("", "more")]),
        (0, None, None, {"a/b": bytes((1 << 20) + 1), "c": b"", "d": b"x" * 300})))

    def feed(self, data: bytes) -> bool:
        try:
            reply = read_reply(data, MAX_FILES)
        except PeerError:
            return False
        assert type(reply) is wire_job.JobReply
        assert type(reply.exit_code) is int
        assert 0 <= reply.exit_code <= 255
        assert reply.limit is None or type(reply.limit) is Limit
        assert len(reply.left_out) <= wire_job.MAX_LEFT_OUT + 1
        assert all(len(one.name) <= 255 and type(one.reason) is LeftOutReason for one in reply.left_out)
        assert reply.raised is (reply.error is not None)
        if reply.error is not None:
            assert all(type(text) is str for text in (reply.error.type, reply.error.message, reply.error.traceback))
        assert all(type(name) is str and type(content) is bytes for name, content in reply.files.items())
        assert all(type(name) is str and type(size) is int and size >= 0 for name, size in reply.behind.items())
        assert not (reply.files and reply.behind)
        return True


class Control(Target):
    """What zygote, keepers and newborn runners say, and the plans that they are given."""

    starts = tuple(control.encode(message) for message in (
        control.Mapped(), control.Locked(), control.Ready({"landlock": "abi 4", "seccomp": "x"}),
        control.Failed(5, "mounts", "no")))
    fixed = tuple(control._FIXED.pack(control._MARK, kind, into, 1, value, 7, 5000, 3, 4, 5, 6, 8)
                  for kind in control._Tag for into in (0, 5, 32) for value in (-1, 0, 2))
    plan = records.pack(ZygotePlan(import_path=("/x",), preload=("json",), bare=False,
                                   executable="/usr/bin/python3", environment=(("A", "b"),), rehearse=True, warm=True))

    def seeds(self) -> list[tuple[bytes, list[tuple[int, int]]]]:
        # Some kinds have no negative value, say: of each kind there are messages that are taken.
        fixed = [data for data in self.fixed if self.feed(data)]
        assert {data[1] for data in self.fixed} == {data[1] for data in fixed}
        return [*super().seeds(), *((data, [(at, at + 1) for at in range(len(data))]) for data in fixed),
                (self.plan, spans(self.plan))]

    def feed(self, data: bytes) -> bool:
        taken = False
        try:
            assert type(control.decode(data)) in (
                *control.KINDS, control.MakeKeeper, control.Made,
                control.Arm, control.Armed, control.Ended, control.Start, control.Started,
                control.Unstarted, control.Exited)
            taken = True
        except PeerError:
            pass
        try:
            assert type(records.unpack(ZygotePlan, data)) is ZygotePlan
            taken = True
        except PeerError:
            pass
        return taken


class Talk(Target):
    """What a client makes of a daemon's bytes, by the short reading and the long one."""

    full = Result(b"out", b"err", 1, Outcome.RAISED, Limit.MEMORY, 0.5, 0.25, 1 << 20, {"mount": 2}, True,
                  ("landlock",), JobError("ValueError", "no", "Traceback"), {"a/b": b"x", "é": b""},
                  left_out=(LeftOut("*.png", LeftOutReason.NO_MATCH), LeftOut("", LeftOutReason.MORE)))
    plain = Result(b"out\n", b"", 0, Outcome.FINISHED, duration=0.5, cpu_time=0.25, memory_peak=4096)
    starts = tuple(data[HEADER:] for data in (
        encode_result(1, full), encode_result(1, plain), encode_result(1, plain), encode_refusal(1, "busy", "full"),
        encode_refusal(0, "busy", "full"), encode_refusal(2, "busy", "full", {"retry_after": 1.5}),
        encode_ok(2, {"version": "0", "wire": 1}),
        encode_result(1, full, stdout=(0, 0, 100), stderr=(0, 4000, 96), files={"f": (0, 3, 4)}, arenas=(4096,))))

    def feed(self, data: bytes) -> bool:
        data = frame(data)
        short = parse_by_template(data)
        if short is not None:
            told, long = parse_result(short), parse_result(parse_reply(decode(data[HEADER:])))
            assert told == long, (told, long)
        talk = Conversation()
        talk._waiting = {1, 2}
        try:
            answers = talk.received(data)
        except (BadReply, Refused):
            return False
        for reply, _ in answers:
            if reply.ok is not None:
                try:
                    fields = parse_result(reply)
                except PeerError:
                    return False
                Outcome(fields["outcome"])
                assert fields["limit"] is None or Limit(fields["limit"])
        return bool(answers)


class Http(Target):
    """What Prometheus, or a browser, asks of the metrics' endpoint."""

    texts = (b"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nUser-Agent: x\r\n\r\n", b"GET /metrics HTTP/1.0\n\n",
             b"GET /metrics?x=y HTTP/1.1\r\nhost: [::1]:9464\r\n\r\n", b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
             b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:1\r\nHost: example.org\r\n\r\n")
    tokens = (b"\r\n", b"\n\n", b"\r\n\r\n", b"\r", b"\0", b" ", b":", b"Host:", b"host: 1.2.3.4", b"[", b"]", b"[::1",
              b"\xff" * 9,
              b"HTTP/1.1", b"GET", b"/metrics", b"127.0.0.1", b"0x7f.1", b"127.1", b"::ffff:127.0.0.1", b"1e400",
              b"%00", b"\xc2\xb2", b"9" * 400, b"::" * 40, b"fe80::1%lo")
    statuses = frozenset({"", "400 Bad Request", "403 Forbidden", "404 Not Found", "405 Method Not Allowed",
                          "431 Request Header Fields Too Large"})

    def seeds(self) -> list[tuple[bytes, list[tuple[int, int]]]]:
        made = []
        for text in self.texts:
            places, at = [], 0
            for word in text.replace(b":", b" ").split(b" "):
                places.append((at, at + len(word)))
                at += len(word) + 1
            made.append((text, places))
        return made

    def feed(self, data: bytes) -> bool:
        said = exporter.verdict(data, local=False)
        assert said is None or said in self.statuses, said
        local = exporter.verdict(data, local=True)
        assert (said is None) == (local is None)
        return "" == said


class SandboxTalk(Target):
    """What a client makes of a daemon's answers about sandboxes."""

    over = SandboxOver("it is over", "memory", 12.5, "memory")
    ended = Result(b"", b"", 137, Outcome.SIGNALLED, Limit.MEMORY, 0.5, 0.25, 1 << 20, {"mount": 2})
    starts = tuple(data[HEADER:] for data in (
        encode_ok(1, {"sandbox": BOX, "idle": 600.0, "lifetime": 3600.0}),
        encode_ok(1, {"chunks": [[1, 1, 0.5, b"out"], [2, 2, 0.75, b"err"]], "over": False}),
        encode_ok(1, {"over": True, **result_fields(ended)}), encode_ok(1, {"over": False}),
        encode_ok(1, {"processes": [{"process": 1, "pid": 2, "title": "x", "over": False, "exit_code": None}]}),
        encode_ok(1, {"written": 3}), encode_ok(1, {"process": 1}), encode_ok(1, {"sent": True}),
        encode_refusal(1, over.kind, over.message, details_of(over))))

    def feed(self, data: bytes) -> bool:
        talk = Conversation()
        talk._waiting = {1}
        try:
            answers = talk.received(frame(data))
        except (BadReply, Refused):
            return False
        taken = False
        for reply, _ in answers:
            if reply.ok is None:
                error = refusal(reply)
                if isinstance(error, SandboxOver):
                    assert type(error.reason) is str
                    assert type(error.when) is float
                    assert error.limit is None or Limit(error.limit)
                taken = True
                continue
            for read in self.readers:
                try:
                    read(reply)
                    taken = True
                except (PeerError, BadReply):
                    pass
        return taken

    readers: tuple[Callable[[Any], object], ...] = (
        sandbox_calls.chunks_of, sandbox_calls.ended_of, sandbox_replies.sandbox_id,
        lambda reply: sandbox_replies.rows(reply, "processes"), lambda reply: sandbox_replies.whole(reply, "written"),
        lambda reply: sandbox_replies.whole(reply, "process", 1), lambda reply: sandbox_replies.flag(reply, "sent"))


class Calls(Target):
    """What a job writes to its reply pipe as calls of functions, and a client reads."""

    starts = tuple(function_frames.call_frame(number, place, function_frames.pack_arguments(args, named))[HEADER:]
                   for number, place, args, named in (
                       (1, 0, (), {}), (2, 1, ("x", b"\0", 0.5, None, True, -7), {"a": [1, [2]], "b": {"c": {}}}),
                       (10_000, 63, ("é" * 40, list(range(20))), {})))

    def feed(self, data: bytes) -> bool:
        try:
            call = function_frames.read_call(data)
            args, named = function_frames.unpack_arguments(call.body)
        except PeerError:
            return False
        assert 0 <= call.number < 1 << 32
        assert 0 <= call.place < 256
        assert type(args) is list
        assert all(type(name) is str for name in named)
        left = [*args, *named.values()]
        while left:
            value = left.pop()
            assert value is None or type(value) in (bool, int, float, str, bytes, list, dict)
            if type(value) is list:
                left += value
            elif type(value) is dict:
                assert all(type(key) is str for key in value)
                left += value.values()
        return True


TARGETS: dict[str, Callable[[], Any]] = {
    **egress_decoders.TARGETS, **web_decoders.TARGETS, **image_decoders.TARGETS,
    "request": Request, "stream": Stream, "job reply": JobReply, "control": Control, "conversation": Talk, "http": Http,
    "sandbox answers": SandboxTalk, "calls": Calls}


def run(name: str, runs: int, seed: int) -> tuple[str, int, int, float, str]:
    """Feed one target; its name, how many inputs it had and took, seconds of processor time, and what was found."""
    target = TARGETS[name]()
    mutator = Mutator(target.seeds(), target.tokens, seed)
    for data, _ in mutator._seeds:
        others = ("stream", "http", *egress_decoders.TARGETS, *web_decoders.TARGETS, *image_decoders.TARGETS)
        assert name in others or target.feed(data) or data[:4] == Talk.starts[4][:4], (name, data.hex())
    taken, began = 0, time.process_time()
    one, feed = mutator.one, target.feed
    for number in range(runs):
        data = one()
        try:
            taken += feed(data)
        except Exception:
            return name, number + 1, taken, time.process_time() - began, (
                f"{name}: seed {seed}, input {number}: {data.hex()}\n{traceback.format_exc()}")
    return name, runs, taken, time.process_time() - began, ""


def main(runs: int, seed: int | None = None, names: Iterable[str] = ()) -> int:
    """Feed all targets, or those of these *names*, *runs* inputs each, by all processors; 1 if anything was found."""
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    processors = len(os.sched_getaffinity(0))
    parts = [(name, runs // 4 + (runs % 4 if not part else 0), seed + part) for name in names or TARGETS
             for part in range(4)]
    with multiprocessing.Pool(processors) as pool:
        done: dict[str, list[Any]] = {name: [0, 0, 0.0] for name in names or TARGETS}
        worst = 0
        for name, count, taken, seconds, found in pool.starmap(run, parts, chunksize=1):
            for at, value in enumerate((count, taken, seconds)):
                done[name][at] += value
            if found:
                print(found)
                worst = 1
    for name, (count, taken, seconds) in done.items():
        print(f"Fed {count} to {name}: {taken} taken, {1e6 * seconds / max(1, count):.1f} us each, seed {seed}",
              file=sys.stderr)
    return worst
