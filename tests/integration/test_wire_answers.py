"""Each operation's answer has the fields that leeward/wire/schema.py says, by a real daemon."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kit.live_daemon import PATIENCE, LiveDaemon
from leeward.wire.file_answers import check_answer
from leeward.wire.file_batches import file_of
from leeward.wire.file_requests import FileRequest
from leeward.wire.frames import FrameReader, decode, encode, pack
from leeward.wire.requests import OPERATIONS, VERSION

#: They need an arena's memory, a folder's descriptor or a home folder; tests of their own read their answers.
ELSEWHERE = {"slot", "sandbox_hide", "overlay_diff", "overlay_read", "overlay_checkpoint", "overlay_restore",
             "overlay_discard"}

KINDS: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (float,), "text": (str,),
                                      "binary": (bytes,), "array": (list,), "place": (list,), "map": (dict,),
                                      "nil": (type(None),)}

DAEMON = ("--pool-size", "3")


def is_of(value: object, kind: str) -> bool:
    """Whether *value* is of a type as docs/wire.md names it."""
    if kind.startswith("array of "):
        return type(value) is list and all(is_of(item, kind.removeprefix("array of ")) for item in value)
    if kind.startswith("map of text to "):
        inner = kind.removeprefix("map of text to ")
        return type(value) is dict and all(type(key) is str and is_of(item, inner) for key, item in value.items())
    return any(type(value) in KINDS[one] for one in kind.split(" or "))


class Asker:
    """
    One connection that checks the answers that it gets.

    Attributes:
        asked: the operations so far.
    """

    def __init__(self, daemon: LiveDaemon) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self.close = self._socket.close
        self._socket.settimeout(PATIENCE)
        self._socket.connect(str(daemon.socket))
        self._reader, self.last = FrameReader(), 0
        self.asked: set[str] = set()

    def __call__(self, op: str, **fields: Any) -> Mapping[str, Any]:
        self.last += 1
        self._socket.sendall(encode({"v": VERSION, "id": self.last, "op": op, **fields}))
        payloads: list[bytes | memoryview] = []
        while not payloads:
            payloads = list(self._reader.feed(self._socket.recv(1 << 16)))
        reply = decode(payloads[0])
        assert "ok" in reply, (op, reply)
        self.check(op, reply["ok"])
        self.asked.add(op)
        return dict(reply["ok"])

    @staticmethod
    def check(op: str, answer: Mapping[str, Any]) -> None:
        operation = OPERATIONS[op]
        if issubclass(operation.kind, FileRequest):
            assert "errno" not in answer, (op, answer)
            check_answer(op, answer)
        elif op != "status":
            told = {name.removesuffix("?"): str(kind) for name, kind in operation.answers.items()}
            assert answer.keys() <= told.keys(), op
            assert answer.keys() >= {name for name in operation.answers if not name.endswith("?")}, op
            for name, value in answer.items():
                assert is_of(value, told[name]), (op, name, value)


def test_every_answer_is_as_the_schema_says(daemon: LiveDaemon) -> None:
    """In the order in which a client could ask."""
    with closing(Asker(daemon)) as with_descriptors, closing(Asker(daemon)) as ask:
        in_order(with_descriptors, ask)

    assert set(OPERATIONS) - ELSEWHERE == ask.asked | with_descriptors.asked


def in_order(with_descriptors: Asker, ask: Asker) -> None:
    """The operations that need descriptors, and all others."""
    with_descriptors("arena")
    with_descriptors("sandbox_dock")
    ask("keep_results")
    for op in ("ping", "status", "recall", "egress_log", "egress_asks"):
        ask(op)
    ask("egress_answer", ask=1)
    for op in ("cancel", "function_take", "output_take"):
        ask(op, target=999)
    ask("function_answer", target=999, call=1)
    large = ask("execute", code=b"print('x' * 100_000); 1", display=True, label="a")
    assert large["arenas"]
    ask("kept_read", target=ask.last)
    ask("kept_drop", target=ask.last - 1)
    session = ask("session_open")["session"]
    for op in ("interrupt", "session_reset", "session_close"):
        ask(op, session=session)

    box = ask("sandbox_open")["sandbox"]
    for op in ("sandbox_list", "sandbox_info", "sandbox_extend"):
        ask(op, **({} if op == "sandbox_list" else {"sandbox": box}))
    ask("sandbox_execute", sandbox=box, code=b"open('a', 'w').write('text')", collect=["a"])
    other = ask("sandbox_open")["sandbox"]
    ask("sandbox_copy", sandbox=other, source=box)
    ask("sandbox_pause", sandbox=other)
    ask("sandbox_fetch", sandbox=box, url="http://192.0.2.1/")
    with_descriptors("sandbox_connect", sandbox=box, port=8000)
    kernel = ask("kernel_open", sandbox=box)["kernel"]
    snapshot = ask("kernel_snapshot", sandbox=box, kernel=kernel)["snapshot"]
    ask("kernel_rollback", sandbox=box, kernel=kernel, snapshot=snapshot)
    needs = ask("snapshot_export", snapshot=snapshot)
    data = ask("snapshot_read", snapshot=snapshot)["data"]
    facts = pack({"python": "3", "packages": {}, "lost": []})
    back = ask("snapshot_import", key=needs["key"], sizes=needs["sizes"], facts=facts, made=1.0)["snapshot"]
    ask("snapshot_write", snapshot=back, data=data)
    for op in ("snapshot_list", "snapshot_info", "snapshot_remove"):
        ask(op, **({} if op == "snapshot_list" else {"snapshot": snapshot}))
    for op in ("kernel_bind", "kernel_fork", "kernel_interrupt", "kernel_reset", "kernel_close"):
        ask(op, sandbox=box, kernel=kernel)
    ask("process_run", sandbox=box, shell="echo; false")
    process = ask("process_start", sandbox=box, argv=["sh"], terminal=[24, 80])["process"]
    ask("process_resize", sandbox=box, process=process, rows=10, columns=20)
    ask("process_write", sandbox=box, process=process, data=b"echo\n")
    ask("process_read", sandbox=box, process=process, wait=PATIENCE)
    ask("process_list", sandbox=box)
    ask("process_signal", sandbox=box, process=process, signal=9)
    ask("process_wait", sandbox=box, process=process, wait=PATIENCE)
    ask("process_kill", sandbox=box, process=process)

    files(ask, box)
    ask("sandbox_kill", sandbox=box)
    ask("shutdown", now=True)


def files(ask: Asker, box: str) -> None:
    """The operations on files."""
    def there(op: str, path: bytes, **fields: Any) -> Mapping[str, Any]:
        return ask(op, sandbox=box, path=path, **fields)

    there("file_mkdir", b"d")
    there("file_write", b"d/a", data=b"one\ntwo\n")
    there("file_append", b"d/a", data=b"three\n")
    there("file_read", b"d/a")
    there("file_write_many", b".", data=b"".join(file_of(b"d/many", -1, b"x")))
    there("file_read_many", b".", paths=b"d/many\0")
    there("file_close", b"d/a", handle=1)
    there("file_set", b"d/a", mode=0o600)
    there("file_link", b"d/l", to=b"a")
    there("file_copy", b"d/a", to=b"d/b")
    there("file_move", b"d/b", to=b"d/c")
    there("file_edit", b"d/a", old=b"one", new=b"1")
    for op in ("file_list", "file_walk", "file_stat"):
        there(op, b"d")
    there("file_glob", b".", pattern=b"d/*")
    there("file_grep", b"d", pattern=b"t.o")
    there("file_remove", b"d", recursive=True)
