"""A process of a live sandbox on a terminal: a pty whose master the daemon keeps."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from kit.box import Box, control
from kit.live import Live, Started, opened
from leeward.daemon.loop.reactor import READ

pytestmark = pytest.mark.needs("user-namespaces")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Box() as box, opened(box) as made:
        yield made


class Terminal:
    """A pty with a process on it. What it shows is in `shown`."""

    def __init__(self, live: Live, *argv: str) -> None:
        self._reactor = live.box.reactor
        self.master, slave = os.openpty()
        self.shown = b""
        self.over = False
        os.set_blocking(self.master, False)
        self._reactor.watch(self.master, READ, self._read)
        self.started: Started = live.start(*argv, terminal=True, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def _read(self, _events: int) -> None:
        try:
            data = os.read(self.master, 4096)
        except OSError:  # EIO: the last slave was closed
            data = b""
        self.shown += data
        if not data:
            self._reactor.forget(self.master)
            self.over = True

    def types(self, text: bytes) -> None:
        os.write(self.master, text)

    def shows(self, text: bytes) -> None:
        self.started.until(lambda: text in self.shown or self.over)
        assert text in self.shown, self.shown

    def close(self) -> None:
        """The terminal hangs up: what is on it gets SIGHUP, and is killed if that doesn't end it."""
        self._reactor.forget(self.master)
        os.close(self.master)
        self.started.process.kill()
        self.started.end()


@pytest.fixture
def terminal(live: Live, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    made = Terminal(live, *getattr(request, "param", ("sh",)))
    yield made
    made.close()


def test_a_pty_is_the_controlling_terminal(live: Live) -> None:
    """Of a session that the process leads, in the foreground; and it has its streams there."""
    terminal = Terminal(live, os.path.realpath(sys.executable), "-c",
                        "import os; print([os.isatty(fd) for fd in range(3)], os.getsid(0) == os.getpid(),"
                        " os.tcgetpgrp(0) == os.getpgrp(), os.getpid() > 2)")
    terminal.shows(b"[True, True, True] True True True")

    got = terminal.started.end()
    assert 0 == got.code
    terminal.started.until(lambda: terminal.over)
    terminal.close()


def test_control_c_interrupts_the_foreground_processes(live: Live) -> None:
    """Python looks for signals before it sleeps: one that comes in between is seen when it wakes up."""
    terminal = Terminal(live, os.path.realpath(sys.executable), "-c",
                        "import time; print('ready', flush=True)\nwhile True: time.sleep(0.1)")
    terminal.shows(b"ready")
    terminal.types(b"\x03")
    terminal.shows(b"KeyboardInterrupt")

    assert -signal.SIGINT == terminal.started.end().code
    terminal.close()


@pytest.mark.parametrize("terminal", [("bash", "--norc", "-i")], indirect=True)
def test_job_control_stops_and_continues(terminal: Terminal) -> None:
    """^Z stops, `jobs` shows, `fg` goes on, in process groups of their own."""
    terminal.shows(b"$ ")
    assert b"no job control" not in terminal.shown
    terminal.types(b"sh -c 'echo rea''dy; read word; echo got $word'\n")
    terminal.shows(b"ready")
    terminal.types(b"\x1a")
    terminal.shows(b"Stopped")
    terminal.types(b"jobs -l\n")
    terminal.shows(b"jobs -l\r\n")
    terminal.types(b"fg\n")
    terminal.types(b"word\n")
    terminal.shows(b"got word")


def test_a_new_size_reaches_the_program(live: Live) -> None:
    """SIGWINCH, and the size itself."""
    terminal = Terminal(live, os.path.realpath(sys.executable), "-c",
                        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
                        "print('ready', flush=True)\nsignal.sigwait([signal.SIGWINCH])\nprint(os.get_terminal_size())")
    terminal.shows(b"ready")
    fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))

    terminal.shows(b"columns=111, lines=33")
    terminal.close()


def test_line_editors_can_set_their_modes(terminal: Terminal) -> None:
    """stty raw and back, and what they flush."""
    terminal.types(b"stty -echo && stty raw && stty sane && stty | head -1 && echo do''ne\n")

    terminal.shows(b"done\r\n")


TYPES = """
import fcntl, os, termios
for request in (0x5412, 0x541C, 0x5423):
    try:
        fcntl.ioctl(0, request, b"x")
        print("typed", hex(request))
    except OSError as error:
        print(os.strerror(error.errno), hex(request))
print("end")
"""


def test_a_command_cannot_type_on_its_terminal(live: Live) -> None:
    """TIOCSTI, TIOCLINUX and TIOCSETD: what a command typed there the shell would read after it."""
    ours, slave = os.openpty()
    with control():  # EIO: this kernel lets nobody (dev.tty.legacy_tiocsti)
        code = f"import os, fcntl, termios\nos.setsid()\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{TYPES}"
        said = subprocess.run([sys.executable, "-c", code], stdin=slave, capture_output=True, check=True, timeout=60)
        assert b"typed 0x5412" in said.stdout or b"Input/output error 0x5412" in said.stdout
    os.close(slave)
    os.close(ours)

    terminal = Terminal(live, os.path.realpath(sys.executable), "-c", TYPES)
    terminal.shows(b"end")

    assert 3 == terminal.shown.count(b"Permission denied")
    assert b"typed" not in terminal.shown
    assert {"ioctl": 3} == terminal.started.end().exit.denied
    terminal.close()


def test_without_its_master_it_hangs_up(live: Live) -> None:
    terminal = Terminal(live, "sh", "-c", "echo ready; sleep 1000")
    terminal.shows(b"ready")
    terminal._reactor.forget(terminal.master)
    os.close(terminal.master)

    assert -signal.SIGHUP == terminal.started.end().code


def test_a_kill_ends_all_that_is_on_it(live: Live) -> None:
    terminal = Terminal(live, "sh", "-c", "(trap '' HUP; sleep 1000) & echo ready; sleep 1000")
    terminal.shows(b"ready")
    terminal.started.process.kill()

    assert -9 == terminal.started.end().code
    terminal.started.until(lambda: terminal.over)  # its last slave is closed: nobody is left
    terminal.close()


# --- of the worker's own devpts -----------------------------------------------


def test_a_sandbox_has_a_terminal_of_its_own(live: Live) -> None:
    """Its size, its line editor and one stream for all three; it is no terminal of the host's."""
    started = live.start("sh", "-c", "stty size; stty -a | grep -o ' iutf8'; echo err >&2; exit 3", size=(33, 111))
    got = started.end()

    assert (3, "33 111\r\n iutf8\r\nerr\r\n", "") == (got.code, got.out, got.err)
