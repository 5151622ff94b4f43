"""
Escapes by the terminal that a process of a live sandbox is on: typing for others, taking all that there are, keeping
it, and letting a stranger in.

The terminal's other end is the daemon's, and what a program writes comes to its client as bytes. What a client's
command line makes of these is in tests/integration/test_terminal_commands.py.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.attack import serves
from kit.box import RUNS, Box, control
from kit.live import Live, opened
from kit.sessions import Wire
from leeward.isolation.terminals import MOST_TERMINALS

ITS_OWN = pytest.mark.no_single_lock("a terminal's program has one filter, which no job has, and its file system is the"
                                     " worker's")
STRANGER = 4242


@pytest.fixture(scope="module")
def two() -> Iterator[Box]:
    """The product, with two workers that may both be a sandbox's."""
    with Box(pool_size=2, spares=0, max_sessions=2) as made:
        yield made
        assert serves(made)


@pytest.fixture
def wire(two: Box) -> Iterator[Wire]:
    RUNS.append(two.made_of)
    with Wire(two) as made:
        yield made


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Box() as box, opened(box) as made:
        yield made


def on_terminal(live: Live, code: str) -> Any:
    """What *code*, on a terminal, says in its last line, as JSON."""
    got = live.start(os.path.realpath(sys.executable), "-c", code, size=(24, 80)).end()
    assert 0 == got.code, got.out
    return json.loads(got.out.splitlines()[-1])


REQUESTS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCSETD": 0x5423}
#: Not for a control: as root these take the host's console.
MORE = {"TIOCCONS": 0x541D, "TIOCVHANGUP": 0x5437}
TYPES = """
import ctypes, errno, fcntl, json, os
libc = ctypes.CDLL(None, use_errno=True)
said = {}
for fd in (os.open("/dev/tty", os.O_RDWR), 0):
    for name, request in REQUESTS.items():
        for above in (0, 1 << 32, 0xDEADBEEF << 32):
            argument = ctypes.create_string_buffer(b"\\0" * 8 if "TIOCSETD" == name else b"x")
            failed = libc.syscall(ctypes.c_long(16 if "x86_64" == os.uname().machine else 29), ctypes.c_long(fd),
                                  ctypes.c_ulong(request | above), argument)
            said[f"{name} {above:#x}{' by its name' if fd else ''}"] = errno.errorcode[ctypes.get_errno()] if failed else ""
said["isatty"] = os.isatty(0)
print(json.dumps(said))
"""


@pytest.mark.smoke
@ITS_OWN
def test_c185_cannot_type_on_its_terminal(live: Live) -> None:
    """
    TIOCSTI and its kin on the terminal that a client has opened, with and without bits that the kernel ignores: what a
    program typed there the shell would read that started it.
    """
    master, slave = os.openpty()
    with control():  # a line discipline can be set, and keys be typed where the kernel lets anybody (EIO where not)
        code = (f"import os, fcntl, termios\nos.setsid()\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
                f"REQUESTS = {REQUESTS}\n{TYPES}")
        done = subprocess.run([sys.executable, "-c", code], stdin=slave, capture_output=True, check=True, timeout=60)
        loose = json.loads(done.stdout)
        assert loose["TIOCSTI 0x0"] in ("", "EIO")
        assert "" == loose["TIOCSETD 0x0"] == loose["TIOCSETD 0x100000000"]
    os.close(slave)
    os.close(master)

    said = on_terminal(live, f"REQUESTS = {REQUESTS | MORE}\n{TYPES}")

    assert said.pop("isatty") is True
    assert {"EACCES"} == set(said.values()), said


MAKES = """
import errno, json, os
made, error = [], ""
try:
    while len(made) < 64:
        made.append(os.openpty())
except OSError as refusal:
    error = errno.errorcode[refusal.errno]
print(json.dumps([len(made), error]))
"""


@ITS_OWN
def test_c186_cannot_take_all_terminals(wire: Wire) -> None:
    """
    A sandbox has 16, and its programs make none themselves; another user's, and the host, get theirs meanwhile. When
    one ends its place can be had again.
    """
    with control():
        loose = subprocess.run([sys.executable, "-c", MAKES], capture_output=True, check=True, timeout=60)
        assert [64, ""] == json.loads(loose.stdout)

    owner, stranger = wire.peer(os.geteuid()), wire.peer(STRANGER)
    mine, other = owner.box(), stranger.box()
    numbers = [owner.ask("process_start", sandbox=mine, argv=["cat"], terminal=[24, 80])["process"]
               for _ in range(MOST_TERMINALS)]
    refused = owner.ask("process_start", sandbox=mine, argv=["cat"], terminal=[24, 80])
    assert ("busy", True) == (refused["kind"], "16 terminals" in refused["message"])
    said = owner.command(mine, os.path.realpath(sys.executable), "-c", MAKES)
    assert [0, "ENOENT"] == json.loads(said["stdout"])

    assert "process" in stranger.ask("process_start", sandbox=other, argv=["cat"], terminal=[24, 80])
    for end in os.openpty():
        os.close(end)
    owner.ask("process_kill", sandbox=mine, process=numbers[0])
    owner.ask("process_wait", sandbox=mine, process=numbers[0], wait=20.0)
    assert "process" in owner.ask("process_start", sandbox=mine, argv=["cat"], terminal=[24, 80])


KEEPS = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    said = open("said", "w", buffering=1)
    while True:
        try:
            os.write(1, b"late")
            got = "wrote"
        except OSError as error:
            got = str(error.errno)
        said.seek(0)
        said.write(got + "\\n")
        time.sleep(0.01)
"""


@ITS_OWN
def test_c187_cannot_keep_the_terminal_after_its_end(wire: Wire, tmp_path: Path) -> None:
    """
    A child that left session and group and heeds no SIGHUP: the end is told, the terminal hangs up (EIO), and its place
    is the next sandbox's when this one is closed.
    """
    with control():  # as long as somebody has the other end, it writes
        master, slave = os.openpty()
        goes_on = tmp_path / "goes-on"
        goes_on.touch()
        code = KEEPS.replace('"said"', '"/dev/null"').replace("while True:", f"while os.path.exists({str(goes_on)!r}):")
        done = subprocess.Popen([sys.executable, "-c", code], stdin=slave, stdout=slave, start_new_session=True)
        os.close(slave)
        assert 0 == done.wait(60)
        assert os.read(master, 4) == b"late"
        os.close(master)
        goes_on.unlink()

    owner = wire.peer(os.geteuid())
    for _ in range(2 * MOST_TERMINALS // 8):
        box = owner.box()
        for _ in range(8):
            number = owner.ask("process_start", sandbox=box, argv=[os.path.realpath(sys.executable), "-c", KEEPS],
                               terminal=[24, 80])["process"]
            assert owner.ask("process_wait", sandbox=box, process=number, wait=20.0)["over"]
        got = owner.command(box, "sh", "-c", "until grep -qx 5 said; do sleep 0.01; done", limits={"time": 20})
        assert 0 == got["exit_code"]
        assert b"ptmx\n" == owner.command(box, "ls", "/dev/pts")["stdout"]
        owner.ask("sandbox_kill", sandbox=box)


@ITS_OWN
def test_c188_cannot_let_a_stranger_in(live: Live) -> None:
    """
    By giving its terminal's file to everybody, or by the names of its own and others' files: the host has no path to
    them, and in the sandbox they can be seen, but neither changed nor opened.
    """
    before = set(os.listdir("/dev/pts"))
    with control():  # of one of the host's there is
        master, slave = os.openpty()
        os.fchmod(slave, 0o666)
        assert 0o666 == stat.S_IMODE(os.stat(os.ttyname(slave)).st_mode)
        os.close(slave)
        os.close(master)

    started = live.start("sh", "-c", "read word", size=(24, 80))
    said = on_terminal(live, """
import errno, json, os
def attempt(call, *arguments):
    try:
        call(*arguments)
        return ""
    except OSError as error:
        return errno.errorcode[error.errno]
own = [f"/dev/pts/{name}" for name in os.listdir("/dev/pts") if name.isdigit()]
others = [f"/proc/{pid}/fd/0" for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
print(json.dumps([[attempt(os.fchmod, 0, 0o666), *(attempt(os.chmod, path, 0o777) for path in (*own, "/dev/pts"))],
                  os.ttyname(0) in own, os.major(os.stat("/dev/pts/ptmx").st_rdev),
                  [attempt(os.open, path, os.O_RDWR) for path in ("/proc/self/fd/0", *own, *others)]]))
""")

    changed, named, maker, opened_by_path = said
    assert {"EROFS"} == set(changed)
    assert named
    assert 1 == maker  # /dev/null's: by it no program makes a terminal
    assert 4 <= len(opened_by_path)
    assert "" not in opened_by_path
    assert before == set(os.listdir("/dev/pts"))
    started.process.kill()
    started.end()
