"""
What is in frames.json: what a client of the wire sends and makes of what it gets.

Runs in:   a developer's shell: `./dev generate`. Tests run the file against the Python and the C client.

Reads docs/wire.md as somebody would who has nothing else: no encoder of ours is asked, so that
an error in it shows.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import msgpack

ABOUT = """\
Frames of leeward's wire, docs/wire.md, for clients in any language.
requests: what is asked of a client as the first thing on a connection, with id 1, and the bytes that it then sends. \
The order of a map's fields is the one of wire.md, and each value has its shortest form.
replies: what a daemon sends to an execute request with id 1, and what its client makes of it: a result, a refusal, \
or `broken`, which ends the connection. Times are in microseconds, rounded.
sessions: calls on one connection, in order, with ids from 1 on: the request's bytes, the answer's, and what becomes \
of the call. A client that has sessions asks for them so.
arenas: a large execute as the first thing on a connection. Its client asks for an arena, gets `answer` and its `file` \
of `size` bytes, and sends `then`; `memory` is what lies at the file's start by then. Or the answer is `broken`. What \
comes by `then` is answered as in replies, with id 2.
Bytes are in hex. A frame is a list of parts, `[hex, times]` for one that is repeated. A reply's files come by \
SCM_RIGHTS beside its first byte: `data` in hex, `seals` as in fcntl(2); without `seals` it is /dev/null.
""".splitlines()

SEALED = ["SEAL", "SHRINK", "GROW", "WRITE"]

PLAIN = {"outcome": "finished", "exit_code": 0, "limit": None, "duration": 0.5, "cpu_time": 0.25, "memory_peak": 4096,
         "denied": {}, "truncated": False, "degraded": [], "error": None, "stdout": b"out\n", "stderr": b""}
PLAIN_SEEN = {"outcome": "finished", "exit_code": 0, "limit": None, "duration_us": 500_000, "cpu_time_us": 250_000,
              "memory_peak": 4096, "denied": {}, "truncated": False, "degraded": [], "error": None,
              "stdout": b"out\n".hex(), "stderr": "", "files": {}, "left_out": [], "omitted": [0, 0]}

TRACE = {"type": "ValueError", "message": "né\n", "traceback": "Traceback\n  x"}


def parts(data: bytes) -> list[Any]:
    """Hex, with long runs of one thing said once."""
    made: list[Any] = []
    at = 0
    for run in re.finditer(rb"([^\0]|..)\1{99,}", data, re.DOTALL):
        made += [data[at:run.start()].hex(), [run[1].hex(), len(run[0]) // len(run[1])]]
        at = run.end()
    return [part for part in (*made, data[at:].hex()) if part]


def framed(payload: bytes) -> list[Any]:
    return parts(struct.pack(">I", len(payload)) + payload)


def message(**fields: Any) -> list[Any]:
    return framed(msgpack.packb(fields))


def result(**changes: Any) -> list[Any]:
    """A result's frame with changes: GONE takes a field away, NIL makes it nil."""
    fields = {**PLAIN, **changes}
    return message(id=1, ok={name: None if value is NIL else value for name, value in fields.items()
                             if value is not GONE})


class Word:
    """Stands for something that no value can."""


NIL, GONE = Word(), Word()


def memory(data: bytes, *seals: str) -> dict[str, Any]:
    return {"data": data.hex(), "seals": list(seals or SEALED)}


def request(what: str, asked: dict[str, Any], **fields: Any) -> dict[str, Any]:
    plain = {name: value.hex() if isinstance(value, bytes) else
             {key: item.hex() if isinstance(item, bytes) else item for key, item in value.items()}
             if isinstance(value, dict) else value for name, value in asked.items()}
    return {"what": what, "execute": plain, "frame": message(v=1, id=1, op="execute", **fields)}


def requests() -> list[dict[str, Any]]:
    long = "x" * 300
    return [
        request("code alone", {"code": b"print(1)"}, code=b"print(1)"),
        request("no code is code too", {"code": b""}, code=b""),
        request("code that is no text", {"code": bytes(range(256))}, code=bytes(range(256))),
        request("a module", {"module": "json.tool"}, module="json.tool"),
        request("everything",
                {"code": b"x", "name": "me.py", "args": ["a", "é" * 20, long], "env": {"K": "v=w", "L": ""},
                 "files": {"d/f": b"\0", "e": b""}, "stdin": b"in\0", "collect": ["*.png", "**/x"], "timeout": 1.5,
                 "memory": 64 << 20, "processes": 3, "output": 1000},
                code=b"x", name="me.py", args=["a", "é" * 20, long], env={"K": "v=w", "L": ""},
                files={"d/f": b"\0", "e": b""}, stdin=b"in\0", collect=["*.png", "**/x"],
                limits={"memory": 64 << 20, "output": 1000, "processes": 3, "time": 1.5}),
        request("numbers at the edges of their forms",
                {"code": b"", "memory": 2**33, "output": 127, "processes": 128}, code=b"",
                limits={"memory": 2**33, "output": 127, "processes": 128}),
        request("sixteen of them", {"code": b"", "args": [str(number) for number in range(16)]}, code=b"",
                args=[str(number) for number in range(16)]),
    ]


def sessions() -> list[dict[str, Any]]:
    """One session from its start to its end, twice reset."""
    steps: list[dict[str, Any]] = []

    def step(what: str, call: str, op: str, asked: dict[str, Any], reply: dict[str, Any], seen: dict[str, Any],
             **fields: Any) -> None:
        number = len(steps) + 1
        steps.append({"what": what, "call": call, "asked": asked, "frame": message(v=1, id=number, op=op, **fields),
                      "reply": message(id=number, **reply), **seen})

    plain = {"ok": PLAIN}, {"result": PLAIN_SEEN}
    over = {"kind": "session_over", "message": "not today: é"}
    step("opened, with limits", "session", "session_open",
         {"memory": 64 << 20, "processes": 3, "timeout": 1.5, "output": 1000, "idle": 2.5}, {"ok": {"session": 300}},
         {"done": True}, limits={"memory": 64 << 20, "output": 1000, "processes": 3, "time": 1.5}, idle=2.5)
    step("code alone", "execute", "execute", {"code": b"x = 1".hex()}, *plain, session=300, code=b"x = 1")
    step("no code is code too", "execute", "execute", {"code": ""}, *plain, session=300, code=b"")
    step("everything", "execute", "execute",
         {"code": b"x".hex(), "name": "me.py", "args": ["a"], "env": {"K": "v"}, "files": {"d/f": "00"},
          "collect": ["*"], "timeout": 0.5, "output": 7}, *plain, session=300, code=b"x", name="me.py", args=["a"],
         env={"K": "v"}, files={"d/f": b"\0"}, collect=["*"], limits={"output": 7, "time": 0.5})
    step("an execute that is refused", "execute", "execute", {"code": ""}, {"error": over}, {"refused": over},
         session=300, code=b"")
    step("a reset", "reset", "session_reset", {}, {"ok": {}}, {"done": True}, session=300)
    step("a reset that is refused", "reset", "session_reset", {}, {"error": {**over, "kind": "busy"}},
         {"refused": {**over, "kind": "busy"}}, session=300)
    step("closed", "close", "session_close", {}, {"ok": {}}, {"done": True}, session=300)
    return steps


def good() -> list[dict[str, Any]]:
    """Replies that have to be taken, with what has to be seen in them."""
    def seen(what: str, frame: list[Any], came: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
        return {"what": what, "frame": frame, **({"files": came} if came else {}),
                "result": {**PLAIN_SEEN, **changes}}

    both = memory(b"0123456789abcdef")
    cases = [
        seen("a plain result", result()),
        seen("binary output", result(stdout=bytes(range(256)), stderr=b"\xff\0"),
             stdout=bytes(range(256)).hex(), stderr="ff00"),
        seen("everything",
             result(outcome="raised", exit_code=1, limit="memory", denied={"mount": 2, "ptrace": 2**63 - 1},
                    truncated=True, degraded=["landlock", "cgroup"], error=TRACE, files={"a/b": b"x", "é": b""},
                    left_out=[["*.csv", "no_match"], ["é", "link"], ["", "more"]], omitted=[2**40, 3]),
             outcome="raised", exit_code=1, limit="memory", denied={"mount": 2, "ptrace": 2**63 - 1}, truncated=True,
             degraded=["landlock", "cgroup"], error=TRACE, files={"a/b": "78", "é": ""},
             left_out=[["*.csv", "no_match"], ["é", "link"], ["", "more"]], omitted=[2**40, 3]),
        seen("times as whole numbers, and as float 32",
             framed(b"\x82\xa2id\x01\xa2ok" + msgpack.packb({**PLAIN, "duration": 3}).replace(
                 b"\xcb" + struct.pack(">d", 0.25), b"\xca" + struct.pack(">f", 0.25))), duration_us=3_000_000),
        seen("fields that may be left out", result(limit=GONE, error=GONE)),
        seen("a field that nobody knows", result(mood="good", **{"": [1, {"a": None}]})),
        seen("the longest forms of lengths",
             framed(b"\xdf\0\0\0\x02\xdb\0\0\0\x02id\xcf\0\0\0\0\0\0\0\x01\xa2ok" + msgpack.packb(PLAIN).replace(
                 b"\xc4\x04out\n", b"\xc6\0\0\0\x04out\n"))),
        seen("fields in another order", message(ok=dict(reversed(PLAIN.items())), id=1)),
        seen("4,096 entries and a key of 4,096 characters",
             result(degraded=["x"] * 4096, denied={"é" * 4096: 1}), degraded=["x"] * 4096, denied={"é" * 4096: 1}),
        seen("32 levels", result(x=_nested(29))),
        seen("output in a memory file", result(stdout=[0, 0, 10], stderr=[0, 10, 6], arenas=[16]), [both],
             stdout=b"0123456789".hex(), stderr=b"abcdef".hex()),
        seen("four memory files, one byte each",
             result(stdout=[3, 0, 1], stderr=[0, 1, 0], files={"f": [1, 0, 1], "g": b"g"}, arenas=[1, 1, 1, 1]),
             [memory(b"0"), memory(b"1"), memory(b"2"), memory(b"3")],
             stdout=b"3".hex(), files={"f": b"1".hex(), "g": b"g".hex()}),
        seen("a memory file that nothing lies in", result(arenas=[16]), [both]),
        seen("seals as far as they are needed", result(stdout=[0, 0, 16], arenas=[16]),
             [memory(b"0123456789abcdef", "SHRINK", "GROW", "WRITE")], stdout=b"0123456789abcdef".hex()),
    ]
    cases += [seen(f"the outcome {word}", result(outcome=word, exit_code=255), outcome=word, exit_code=255)
              for word in ("signalled", "timed_out", "out_of_memory", "output_limit", "internal")]
    cases += [seen(f"the limit {word}", result(limit=word), limit=word)
              for word in ("processes", "files", "output", "time", "cpu")]
    return cases


def _nested(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


def refused() -> list[dict[str, Any]]:
    kinds = ("busy", "queue_timeout", "shutting_down", "cancelled", "bad_request", "version", "session_over",
             "forbidden", "internal", "a kind that nobody knows")
    return [{"what": f"refused: {kind}, id {number}", "refused": {"kind": kind, "message": "not today: é"},
             "frame": message(id=number, error={"kind": kind, "message": "not today: é"})}
            for kind in kinds for number in ((0, 1) if kind in ("busy", "shutting_down") else (1,))] + [
        {"what": f"refused: busy, to come back after {after}",
         "refused": {"kind": "busy", "message": "not now", "retry_after": after},
         "frame": message(id=1, error={"kind": "busy", "message": "not now", "retry_after": after})}
        for after in (0, 1.5)]


def broken() -> list[dict[str, Any]]:
    """Replies that no client may take."""
    file = memory(b"0123456789abcdef")
    frames: dict[str, list[Any]] = {
        "another protocol": [b"HTTP/1.1 200 OK\r\n\r\n".hex()],
        "a frame above 16 MiB": ["01000001"],
        "a frame of 4 GiB": ["ffffffff"],
        "an empty frame": framed(b""),
        "no map": framed(b"\x07"),
        "an array": framed(b"\x92\x01\x02"),
        "a map that is cut short": framed(b"\x82\xa2id\x01\xa2ok"),
        "a map of 2^32 - 1 entries": framed(b"\xdf\xff\xff\xff\xff"),
        "text of 2^32 - 1 bytes": framed(b"\x81\xa1a\xdb\xff\xff\xff\xff"),
        "binary of 2^32 - 1 bytes": framed(b"\x81\xa1a\xc6\xff\xff\xff\xff"),
        "an array of 2^32 - 1 entries": framed(b"\x81\xa1a\xdd\xff\xff\xff\xff"),
        "100,000 levels": framed(b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0"),
        "33 levels": result(x=_nested(31)),
        "4,097 entries": result(x=[None] * 4097),
        "32,769 values": result(x=[[None] * 4000] * 9),
        "a key of 4,097 characters": result(**{"k" * 4097: 1}),
        "a key that is a number": framed(b"\x82\xa2id\x01\x05\x80"),
        "a key that is binary": framed(b"\x82\xa2id\x01\xc4\x02ok\x80"),
        "a key twice": framed(b"\x83\xa2id\x01\xa2id\x01\xa2ok" + msgpack.packb(PLAIN)),
        "a key twice, deep": framed(
            b"\x82\xa2id\x01\xa2ok" + bytes([0x80 | (len(PLAIN) + 1)]) + b"\xa1x\x82\xa1a\x01\xa1a\x01"
            + msgpack.packb(PLAIN)[1:]),
        "text that isn't UTF-8": framed(b"\x82\xa2id\x01\xa2ok\x81\xa1a\xa2\xff\xfe"),
        "a surrogate in UTF-8": framed(b"\x82\xa2id\x01\xa2ok\x81\xa1a\xa3\xed\xa0\x80"),
        "an extension type": framed(b"\x82\xa2id\x01\xa2ok\x81\xa1a\xd4\x05x"),
        "a timestamp": framed(b"\x82\xa2id\x01\xa2ok\x81\xa1a" + msgpack.packb(msgpack.Timestamp(1, 2))),
        "the byte that MessagePack never uses": framed(b"\x82\xa2id\x01\xa2ok\x81\xa1a\xc1"),
        "bytes after the map": framed(msgpack.packb({"id": 1, "ok": PLAIN}) + b"\x01"),
        "no id": message(ok=PLAIN),
        "an id that is text": message(id="1", ok=PLAIN),
        "an id below 0": message(id=-1, ok=PLAIN),
        "an id above 2^53 - 1": message(id=2**53, ok=PLAIN),
        "an answer to nobody": message(id=0, ok=PLAIN),
        "an answer to another request": message(id=2, ok=PLAIN),
        "neither ok nor error": message(id=1),
        "ok that is nil": message(id=1, ok=None),
        "ok that is text": message(id=1, ok="fine"),
        "an error that is text": message(id=1, error="no"),
        "an error without a message": message(id=1, error={"kind": "busy"}),
        "an error whose kind is a number": message(id=1, error={"kind": 1, "message": "x"}),
        "a time to come back that is text": message(id=1, error={"kind": "busy", "message": "", "retry_after": "1"}),
        "a time to come back before now": message(id=1, error={"kind": "busy", "message": "", "retry_after": -1}),
        "a time to come back without end": message(id=1, error={"kind": "busy", "message": "", "retry_after": 1e300}),
        "arenas that are nil": result(arenas=NIL),
        "five memory files": result(arenas=[1] * 5),
        "a memory file of no bytes": result(arenas=[0]),
        "a memory file of less than none": result(arenas=[-1]),
        "a memory file above 2^40 bytes": result(arenas=[2**40 + 1]),
        "a memory file that didn't come": result(stdout=[0, 0, 16], arenas=[16]),
    }
    for name in ("outcome", "exit_code", "duration", "cpu_time", "memory_peak", "denied", "truncated", "degraded",
                 "stdout", "stderr"):
        frames[f"no {name}"] = result(**{name: GONE})
        frames[f"{name} that is nil"] = result(**{name: NIL})
    bad: dict[str, list[Any]] = {
        "outcome": ["fine", "", b"finished"], "exit_code": [-1, 256, 1.0, True, "0", 2**64 - 1],
        "limit": ["disk", "", 1, b"memory"], "duration": [-1, float("nan"), float("inf"), 1e12, "1", True, 2**64 - 1],
        "cpu_time": [-0.5], "memory_peak": [-1, 2**63, 1.0],
        "denied": [[], {"mount": "1"}, {"mount": -1}, {"mount": 2**63}],
        "truncated": [0, 1, "no"], "omitted": [NIL, 7, [], [1], [1, 2, 3], [-1, 0], [0, "1"], [True, 0], {"a": 1}],
        "degraded": ["landlock", {"landlock": 1}, [1], [b"landlock"]],
        "error": ["no", [], {"type": "T", "message": "m"}, {"type": "T", "message": "m", "traceback": b"t"}],
        "stdout": ["text", 7, [0, 0, 1], [0, 0], [0, 0, 0, 0], {}], "stderr": [[0, 0, 0]],
        "files": [NIL, [], {"f": "text"}, {"f": [0, 0, 0]}, {"": b""}, {"/a": b""}, {"a//b": b""}, {"../a": b""},
                  {"a/./b": b""}, {"a/": b""}, {"a\0b": b""}, {"a\nb": b""}, {"/".join("a" * 17): b""},
                  {"a" * 1025: b""}],
        "left_out": [NIL, {}, "a", ["ab"], [["a"]], [["a", "link", "b"]], [["a", "weather"]], [["a", ""]],
                     [[b"a", "link"]], [["a", b"link"]], [["a", ["link"]]], [["a", "link"]] * 1025],
    }
    for name, values in bad.items():
        for value in values:
            frames[f"{name}: {'nil' if value is NIL else repr(value):.40}"] = result(**{name: value})
    cases: list[dict[str, Any]] = [{"what": what, "frame": frame, "broken": True} for what, frame in frames.items()]
    def with_file(what: str, place: Any, sent: dict[str, Any]) -> dict[str, Any]:
        return {"what": what, "frame": result(stdout=place, arenas=[16]), "files": [sent], "broken": True}

    cases += [with_file(f"a place that is none: {place}", place, file) for place in (
        [0, 0, 17], [0, 17, 0], [0, 1, 16], [1, 0, 1], [-1, 0, 1], [0, -1, 1], [0, 0, -1], [0, 2**63 - 1, 2**63 - 1],
        [0, 2**64 - 1, 1], [0, 0.0, 1], [0, True, 1])]
    cases += [with_file(f"a memory file {what}", [0, 0, 16], sent) for what, sent in {
        "that may shrink": memory(b"x" * 16, "GROW", "WRITE"), "that may grow": memory(b"x" * 16, "SHRINK", "WRITE"),
        "that may be written": memory(b"x" * 16, "SHRINK", "GROW"), "that is larger": memory(b"x" * 17),
        "that is smaller": memory(b"x" * 15), "that is none": {"data": ""}}.items()]
    return cases


def arenas() -> list[dict[str, Any]]:
    """What becomes of a large request, with an arena and without one."""
    size, slot = 1 << 20, 2 << 20
    code = parts(b"#" * size)
    asked = message(v=1, id=1, op="arena")
    request = msgpack.packb({"v": 1, "id": 2, "op": "execute", "code": b"#" * size})

    def given(seals: tuple[str, ...] = ("SHRINK", "GROW", "SEAL"), real: int = slot, **changes: Any) -> dict[str, Any]:
        return {"answer": message(id=1, ok={"slots": 1, "size": slot, "arenas": [slot], **changes}),
                "file": {"size": real, "seals": list(seals)}}

    def case(what: str, answer: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"what": what, "execute": {"code": code}, "asked": asked, **answer, **more}

    by_slot = {"then": message(v=1, id=2, op="slot", slot=0, length=len(request)), "memory": parts(request)}
    by_socket = {"then": framed(request)}
    refusals = [case(f"refused: {kind}", {"answer": message(id=1, error={"kind": kind, "message": "no"})}, **by_socket)
                for kind in ("busy", "bad_request", "a kind that nobody knows")]
    broken: dict[str, dict[str, Any]] = {
        "no slots": given(slots=0), "slots below none": given(slots=-1),
        "a number of slots that is text": given(slots="1"),
        "65 slots": given(slots=65, size=1 << 10, arenas=[65 << 10], real=65 << 10),
        "slots of no bytes": given(size=0), "slots above 1 GiB": given(size=(1 << 30) + 1, arenas=[(1 << 30) + 1]),
        "another size than its slots have": given(arenas=[slot + 1]), "two files": given(arenas=[slot, slot]),
        "no file": given(arenas=[]), "a file that may shrink": given(("GROW",)),
        "a file that is smaller": given(real=slot - 1), "a file that is larger": given(real=slot + 1),
    }
    return [
        case("a slot", given(), **by_slot),
        case("a slot of just its size", given(size=len(request), arenas=[len(request)], real=len(request)), **by_slot),
        case("slots that are too small", given(size=1 << 10, arenas=[1 << 10], real=1 << 10), **by_socket),
        case("fields that nobody knows", given(mood="good"), **by_slot),
        *refusals,
        *(case(what, answer, broken=True) for what, answer in broken.items()),
    ]


def text() -> str:
    """The file, one case a line."""
    def lines(cases: list[dict[str, Any]]) -> str:
        return ",\n".join(f"  {json.dumps(case, ensure_ascii=False)}" for case in cases)

    replies = [*good(), *refused(), *broken()]
    about = ",\n".join(f"  {json.dumps(line)}" for line in ABOUT)
    return (f'{{"wire": 1, "about": [\n{about}\n],\n"requests": [\n{lines(requests())}\n],\n'
            f'"sessions": [\n{lines(sessions())}\n],\n'
            f'"replies": [\n{lines(replies)}\n],\n"arenas": [\n{lines(arenas())}\n]}}\n')
