"""
Escapes from a live sandbox: into a stranger's, past its end, and out of a program's streams; and what fills the daemon.

A live sandbox has what a job hasn't: time, several processes, and a name by which other connections find it. What must
hold: the name is worth nothing to another user, nothing of it outlives its end, and what a program writes is output.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess

import pytest

from kit.box import PATIENCE_S, RUNS, Box, Run, control, run_outside
from kit.live_daemon import descendants, watched
from kit.sessions import Wire
from leeward.daemon.sandboxes import registry
from leeward.wire.sandbox_ids import ID_ALPHABET

BY_THE_DAEMON = pytest.mark.no_single_lock("the daemon's books say whose a sandbox is, and no lock of a job could")
STRANGER = 4242


@pytest.mark.smoke
@BY_THE_DAEMON
def test_c175_a_strangers_sandbox_cannot_be_used(wire: Wire):
    """By its very id, with every operation, while it is open and after its end; nor by an id that is one letter off."""
    owner, stranger = wire.peer(os.geteuid()), wire.peer(STRANGER)
    box = owner.box()
    secret = secrets.token_hex(16)
    owner.command(box, "sh", "-c", f"echo {secret} > secret")
    process = owner.ask("process_start", sandbox=box, argv=["cat"], open=True)["process"]
    with control():  # another connection of its owner's sees it
        assert f"{secret}\n".encode() == wire.peer(os.geteuid()).command(box, "cat", "secret")["stdout"]

    near = [box[:place] + ID_ALPHABET[(ID_ALPHABET.index(box[place]) + 1) % 32] + box[place + 1:]
            for place in range(26)]
    one = {"process": process}
    for name in (box, *near):
        for op, fields in (
                ("sandbox_info", {}), ("sandbox_extend", {"idle": 1.0}), ("sandbox_kill", {}), ("process_list", {}),
                ("process_run", {"shell": "cat secret"}), ("process_start", {"argv": ["true"]}), ("process_read", one),
                ("process_wait", one), ("sandbox_connect", {"port": 8000}),
                ("process_kill", one), ("process_write", {**one, "data": b"x"}),
                ("process_signal", {**one, "signal": 9}), ("process_resize", {**one, "rows": 9, "columns": 9}),
                ("process_start", {"argv": ["sh"], "terminal": [24, 80]}), ("kernel_open", {}),
                ("overlay_checkpoint", {"target": "/workspace"}), ("overlay_discard", {"target": "/workspace"}),
                ("overlay_restore", {"target": "/workspace", "name": "1"}),
                ("file_read", {"path": b"secret"}), ("file_write", {"path": b"secret"}), ("file_list", {}),
                ("sandbox_execute", {"code": b"print(open('secret').read())"})):
            answer = stranger.ask(op, sandbox=name, **fields)
            assert "sandbox_over" == answer["kind"], (op, name, answer)
            assert answer["reason"] in ("unknown", "restart"), answer
    assert [] == stranger.ask("sandbox_list")["sandboxes"]
    theirs = stranger.box()
    for name in (box, *near):
        assert "sandbox_over" == stranger.ask("sandbox_copy", sandbox=theirs, source=name)["kind"]
    assert b"" == stranger.command(theirs, "ls", "-A")["stdout"]

    assert f"{secret}\n".encode() == owner.command(box, "cat", "secret")["stdout"]
    assert [False] == [row["over"] for row in owner.ask("process_list", sandbox=box)["processes"]
                       if row["process"] == process]
    owner.ask("sandbox_kill", sandbox=box)
    assert "killed" == owner.ask("sandbox_info", sandbox=box)["reason"]
    assert "unknown" == stranger.ask("sandbox_info", sandbox=box)["reason"]


@BY_THE_DAEMON
def test_c176_ids_and_memory_cannot_be_used_up(wire: Wire, monkeypatch: pytest.MonkeyPatch):
    """By a user who opens sandboxes and ends them, and one who never reads what his processes write."""
    monkeypatch.setattr(registry, "ENDED_OF_ONE", 3)
    peer, other = wire.peer(STRANGER), wire.peer(os.geteuid())
    kept = other.box()
    other.ask("sandbox_kill", sandbox=kept)
    seen = set()
    for _ in range(6):
        box = peer.box()
        seen.add(box)
        with control():  # while it is open it takes place
            assert 1 == len(wire.server.desk)
        peer.ask("sandbox_kill", sandbox=box)
    assert 6 == len(seen)
    assert 4 == len(wire.server.desk._registry._ended)
    assert "killed" == other.ask("sandbox_info", sandbox=kept)["reason"]

    box = peer.box()
    process = peer.ask("process_start", sandbox=box, shell="yes")["process"]
    program = wire.server.desk._registry.all()[0].sandbox.sandbox.program(process)
    wire.until(lambda: program.chunks.full)
    for _ in range(20):
        assert b"1\n" == peer.command(box, "echo", "1")["stdout"]
    assert program.chunks.size < 1 << 20
    peer.ask("sandbox_kill", sandbox=box)


@BY_THE_DAEMON
def test_c248_a_strangers_ends_cannot_be_heard_of(wire: Wire):
    """By who asks, by who waits, by any number; and there is no end to what many ends would fill."""
    owner, stranger = wire.peer(os.geteuid()), wire.peer(STRANGER)
    waits = stranger.send("recall", wait=3600)
    box = owner.box()
    owner.ask("process_run", sandbox=box, shell="exit 3; # secret")
    owner.ask("sandbox_kill", sandbox=box)
    with control():  # another connection of its owner's hears of it
        rows = wire.peer(os.geteuid()).ask("recall")["events"]
        assert [("process", "exit 3; # secret"), ("sandbox", None)] == [(row["kind"], row.get("title")) for row in rows]
    for after in (0, 1, 2, 3):
        assert {"events": [], "last": 0} == {field: stranger.ask("recall", after=after)[field]
                                             for field in ("events", "last")}
    assert not stranger.has(waits)
    book = wire.server.watcher.events
    for _ in range(4):
        box = owner.box()
        owner.ask("sandbox_kill", sandbox=box)
    for number in range(5000):
        book.sandbox(os.geteuid(), f"{number}", "memory", "x" * 5000, {})
    assert 256 >= len(owner.ask("recall")["events"]) == len(book)
    own = stranger.box()
    stranger.ask("sandbox_kill", sandbox=own)
    assert [own] == [row["sandbox"] for row in stranger.wait(waits)["ok"]["events"]]


#: Gets away from everything that could take it along, and tells its number.
LEAVES = """
import os, signal, sys, time
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
os.closerange(0, 3)
time.sleep(1000)
"""


@pytest.mark.smoke
@pytest.mark.no_single_lock("the pid namespace and the group of a sandbox end everything in it, each by itself")
def test_c177_no_process_outlives_its_sandbox(wire: Wire):
    """One that has left its parent, its session and its streams, and ignores signals."""
    RUNS.append(Run(outside=True))
    with control():  # outside, the end of what started it leaves it alone
        with subprocess.Popen([_python(wire.box), "-c", LEAVES], stdout=subprocess.PIPE) as left:
            assert left.stdout is not None
            number = int(left.stdout.readline())
        os.kill(number, signal.SIGKILL)  # it was there

    peer = wire.peer()
    before = set(descendants(os.getpid()))
    box = peer.box()
    assert 0 < int(peer.command(box, _python(wire.box), "-c", LEAVES)["stdout"])
    inside = [pid for pid in set(descendants(os.getpid())) - before if _is(pid, b"time.sleep(1000)")]
    assert inside
    peer.ask("sandbox_kill", sandbox=box)
    with watched(inside) as wait:
        wire.until(lambda: not wait(0.01))


def _python(box: Box) -> str:
    return box.engine.spec.executable


def _is(pid: int, text: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return text in file.read()
    except OSError:
        return False


#: Writes what would be the end of a job, and a daemon's answer, into every descriptor that there is.
FORGES = """
import json, os, struct
answer = b'\\x82\\xa2id\\x01\\xa2ok\\x81\\xa9exit_code\\x07'
frame = struct.pack('>I', len(answer)) + answer
written = []
for fd in range(256):
    try:
        os.write(fd, frame)
        written.append(fd)
    except OSError:
        pass
os.write(2, json.dumps(written).encode())
"""


@pytest.mark.smoke
@pytest.mark.no_single_lock("a program has what its keeper gives it; the lock on descriptors is the tests' of jobs")
def test_c178_a_programs_replies_cannot_be_forged(wire: Wire):
    """It has its streams and no other descriptor, so a frame that it writes is output."""
    with control():  # whoever has another descriptor writes there
        read, write = os.pipe()
        os.set_inheritable(write, True)
        told = run_outside(FORGES, pass_fds=[write])
        os.close(write)
        assert f"{write}]" in told
        assert select.select([read], [], [], PATIENCE_S)[0]
        os.close(read)

    peer = wire.peer()
    box = peer.box()
    other = peer.ask("process_start", sandbox=box, argv=["cat"], open=True)["process"]
    got = peer.command(box, _python(wire.box), "-c", FORGES)
    assert (0, "finished") == (got["exit_code"], got["outcome"])
    assert [1, 2] == json.loads(got["stderr"].partition(b"[")[1] + got["stderr"].partition(b"[")[2])
    assert got["stdout"].endswith(b"exit_code\x07")
    assert {"over": False} == peer.ask("process_wait", sandbox=box, process=other)
    peer.ask("sandbox_kill", sandbox=box)
