"""Terminals of live sandboxes as their clients have them: over the daemon, with the programs that people use on one."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import time
from collections.abc import Iterator

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon

pytestmark = pytest.mark.needs("user-namespaces")


@pytest.fixture(scope="module", params=["uring", "socket"])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "2", "--io", request.param) as made:
        yield made


class Screen:
    """A terminal, and all that it has shown."""

    def __init__(self, process: leeward.Process) -> None:
        self.process, self.shown = process, ""

    def until(self, pattern: str, patience: float = PATIENCE) -> re.Match[str]:
        """Wait until it shows something that wasn't there at the last call."""
        until = time.monotonic() + patience
        while not (found := re.search(pattern, self.shown, re.DOTALL)):
            chunks = self.process.read(until - time.monotonic())
            assert chunks, (pattern, self.shown)
            self.shown += "".join(chunk.text for chunk in chunks)
        self.shown = self.shown[found.end():]
        return found

    def types(self, text: str) -> None:
        self.process.write(text)

    def asks(self, line: str, pattern: str) -> None:
        """
        Type a line for the shell until it answers. Bash now and then loses what is typed right after a Ctrl-Z or
        Ctrl-C, though its prompt is there, on any pseudo-terminal.
        """
        for _ in range(9):
            self.types(line)
            with contextlib.suppress(AssertionError):
                self.until(pattern, PATIENCE / 10)
                return
        self.types(line)
        self.until(pattern)


def test_a_shell_with_job_control(box: leeward.Sandbox) -> None:
    """Lines, Ctrl-C, Ctrl-Z, jobs and fg; and the exit code at its end."""
    screen = Screen(box.terminal(["bash", "--norc", "-i"]))
    screen.until(r"\$ ")
    screen.types("sh -c 'echo star\"\"ted; tr a-z A-Z'\n")
    screen.until("started\r\n")
    screen.types("hello\n")
    screen.until("HELLO\r\n")
    screen.types("\x1a")
    screen.until(r"Stopped.*\$ ")
    screen.asks("jobs\n", r"\[1\]\+ +Stopped.*\$ ")
    screen.asks("fg\n", "tr a-z A-Z'\r\n")
    screen.types("again\n")
    screen.until("AGAIN\r\n")
    screen.types("\x03")
    screen.until(r"\^C.*\$ ")
    screen.asks("echo $?; exit 7\n", "130\r\n")

    ended = screen.process.wait(PATIENCE)
    assert ended is not None
    assert 7 == ended.exit_code


def test_a_terminal_has_its_size_and_is_a_terminal(box: leeward.Sandbox) -> None:
    line = "trap 'stty size' WINCH; stty size; echo $TERM; while :; do sleep 0.01; done"
    screen = Screen(box.terminal(line, (30, 90)))
    screen.until("30 90\r\nxterm-256color\r\n")

    assert screen.process.resize(50, 132)

    screen.until("50 132\r\n")
    screen.process.kill()
    assert screen.process.wait(PATIENCE)
    assert not screen.process.resize(10, 10)
    screen = Screen(box.terminal("echo $TERM $A", env={"TERM": "dumb", "A": "é"}))
    screen.until("dumb é\r\n")


def test_python_with_its_line_editor(box: leeward.Sandbox) -> None:
    """readline: history by the arrow, and Ctrl-D."""
    screen = Screen(box.terminal(["python3", "-q"], env={"TERM": "xterm"}))
    screen.until(">>> ")
    screen.types("6 * 7\r")
    screen.until("42\r\n")
    screen.until(">>> ")
    screen.types("\x1b[A\r")
    screen.until("6 \\* 7.*42\r\n")
    screen.types("import time; print('be''gan'); time.sleep(1000)\r")
    screen.until("began\r\n")
    screen.types("\x03")
    screen.until("KeyboardInterrupt.*>>> ")
    screen.types("\x04")

    ended = screen.process.wait(PATIENCE)
    assert ended is not None
    assert ended.exit_code in (0, 130)  # CPython remembers a Ctrl-C until its end


def test_a_program_finds_its_terminal(box: leeward.Sandbox) -> None:
    """By its name, and by /dev/tty where its streams are elsewhere; a program without one learns that it has none."""
    screen = Screen(box.terminal("tty; ls /dev/pts; python3 -c 'import os; print(os.ttyname(0), os.ctermid())';"
                                 " (read word </dev/tty; echo got $word >/dev/tty) </dev/null >/dev/null"))
    screen.until("/dev/pts/0\r\n0 +ptmx\r\n/dev/pts/0 /dev/tty\r\n")
    also = Screen(box.terminal("tty; read word"))
    also.until("/dev/pts/1\r\n")
    also.types("\n")
    screen.types("word\n")
    screen.until("got word\r\n")

    assert screen.process.wait(PATIENCE)
    assert also.process.wait(PATIENCE)
    assert "No such device or address" in box.shell(": </dev/tty").stderr_text
    assert "ptmx\n" == box.shell("ls /dev/pts").stdout_text


@pytest.mark.skipif(shutil.which("git") is None, reason="git is missing")
def test_git_asks_for_credentials(box: leeward.Sandbox) -> None:
    """And getpass, with their input from elsewhere."""
    screen = Screen(box.terminal("printf 'protocol=https\\nhost=h.test\\n\\n' | git credential fill;"
                                 " python3 -c 'import getpass; print(getpass.getpass()[::-1])' </dev/null"))
    screen.until("Username for 'https://h.test': ")
    screen.types("me\n")
    screen.until("Password for 'https://me@h.test': ")
    screen.types("sesame\n")
    screen.until("username=me\r\npassword=sesame\r\n")
    screen.until("Password: ")
    screen.types("abc\n")
    screen.until("cba\r\n")


def test_a_pager_works_on_a_terminal(box: leeward.Sandbox) -> None:
    box.shell("seq 1000 > numbers")
    screen = Screen(box.terminal("less numbers || more numbers", (10, 40)))
    screen.until("9\r\n")
    screen.types(" ")
    screen.until("17\r\n")
    screen.types("q")
    ended = screen.process.wait(PATIENCE)

    assert ended is not None
    assert 0 == ended.exit_code


def test_requests_that_a_terminal_cannot_serve_are_refused(box: leeward.Sandbox) -> None:
    """Closing its input, a size out of bounds; a process without a terminal has no size."""
    screen = box.terminal(["cat"])
    with pytest.raises(leeward.RequestRejected, match="Ctrl-D"):
        screen.close_stdin()
    for size in ((0, 80), (24, 65536), (24,), 24, "ab"):
        with pytest.raises(leeward.RequestRejected):
            box.terminal(["cat"], size)  # type: ignore[arg-type]  # that is the test
    plain = box.start(["sleep", "1000"])
    with pytest.raises(leeward.RequestRejected, match="no terminal"):
        plain.resize(10, 10)


def test_a_program_that_is_not_there(box: leeward.Sandbox) -> None:
    screen = Screen(box.terminal(["no-such-program"]))
    screen.until("sh: no-such-program: not found\r\n")
    ended = screen.process.wait(PATIENCE)

    assert ended is not None
    assert 127 == ended.exit_code


def test_from_another_connection(box: leeward.Sandbox, daemon: LiveDaemon) -> None:
    number = box.terminal(["cat"]).number
    other = leeward.Sandbox.attach(box.id, socket=daemon.socket)
    screen = Screen(other.process(number))
    screen.types("typed\n")
    screen.until("typed\r\ntyped\r\n")

    assert screen.process.resize(9, 9)
    assert screen.process.signal(signal.SIGKILL)
    assert screen.process.wait(PATIENCE)
    other.detach()


def test_a_reader_that_stops_makes_its_own_terminal_wait(box: leeward.Sandbox, daemon: LiveDaemon) -> None:
    """
    Its program waits in its write; another terminal of the sandbox, and another sandbox, answer meanwhile. Ctrl-C
    still ends it.
    """
    flood = box.terminal(["yes"])
    assert flood.read(PATIENCE)
    for _ in range(20):
        screen = Screen(box.terminal(["echo", "here"]))
        screen.until("here\r\n")
    with leeward.Sandbox(socket=daemon.socket) as other:
        assert b"other\n" == other.run(["echo", "other"]).stdout
    flood.write(b"\x03")
    ended = flood.result()
    assert 130 == ended.exit_code
    assert len(ended.stdout) < 1 << 20


def test_terminals_by_asyncio(daemon: LiveDaemon) -> None:
    async def main() -> tuple[str, bool, int]:
        async with leeward.AsyncSandbox(socket=daemon.socket) as box:
            screen = await box.terminal("stty size; read word; stty size; exit 5", size=(11, 22))
            shown = ""
            while "\r\n" not in shown:
                shown += "".join(chunk.text for chunk in await screen.read())
            resized = await screen.resize(33, 44)
            await screen.write("x\n")
            got = await screen.result()
            return shown + got.stdout_text, resized, got.exit_code

    assert ("11 22\r\nx\r\n33 44\r\n", True, 5) == asyncio.run(main())


def test_all_output_before_a_programs_end_comes(box: leeward.Sandbox) -> None:
    """Though a child keeps the terminal open, more than a terminal, or the daemon, holds."""
    line = "(trap '' HUP; sleep 1000) & seq 1 60000; echo last"
    started = box.terminal(line)
    got = started.result()

    lines = got.stdout_text.split("\r\n")
    assert [str(number) for number in range(1, 60001)] == lines[:60000]
    assert ["last", ""] == lines[60000:]
