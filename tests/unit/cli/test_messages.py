"""Messages: names that aren't UTF-8, limits of this process, output that takes nothing for a while."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import leeward
import leeward_cli
from kit.fake_daemon import FakeDaemon
from leeward.daemon.run.report import Report
from leeward.errors import quoted
from leeward.spec.outcome import Outcome, Result
from leeward_cli import main as module
from leeward_cli.click_options import run_alone
from leeward_cli.messages import EscapedStream, escape

PLACES = os.pathsep.join(str(Path(package.__path__[0]).parent) for package in (leeward, leeward_cli))


def run(program: list[str], *words: str | bytes, before: Callable[[], None] | None = None,
        stdin: int = os.O_RDONLY, **variables: str) -> subprocess.CompletedProcess[bytes]:
    fd = os.open("/" if os.O_DIRECTORY == stdin else os.devnull, stdin)
    try:
        return subprocess.run([*program, *words], env={**os.environ, "PYTHONPATH": PLACES, **variables}, timeout=60,
                              stdin=fd, capture_output=True, check=False, preexec_fn=before)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("name", "text"), [
    (b"\xff.py", r"'\xff.py'"), ("é 日.py".encode(), "'é 日.py'"), (b"a\n\x1b[1m\x7f", r"'a\n\x1b[1m\x7f'"),
    (b"it's", '"it\'s"'), (b"'\"", r"""'\'"'"""), (b"a\\xff", r"'a\\xff'"), (b"", "''"),
    ("\u202e\x9b\U000e0041".encode(), r"'\u202e\u009b\U000e0041'"),
])
def test_a_name_in_quotes(name: bytes, text: str) -> None:
    """Each byte that isn't UTF-8 is shown as that byte, and can't be taken for a character."""
    assert text == quoted(name) == quoted(os.fsdecode(name))


@pytest.mark.parametrize("words", [("exec", "--file"), ("run", "--file"), ("exec", "1", "--put"), ("ping", "--socket"),
                                   ("exec", "1", "--socket")])
@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX"])
def test_a_file_is_named_by_its_bytes(program: list[str], words: tuple[str, ...], locale: str, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/no\xff \xc3\xa9"
    said = run(program, *words, name, LC_ALL=locale, PYTHONCOERCECLOCALE="0").stderr

    assert b"/no\\xff \xc3\xa9'" in said, said
    assert b"Traceback" not in said


@pytest.mark.parametrize("words", [("exec", "1", "--label", b"\xff"), ("exec", "1", "--", b"\xff"),
                                   ("exec", "-m", b"\xff"), ("exec", "1", "--env", b"A=\xff")])
def test_a_word_that_is_no_text_is_named(program: list[str], words: tuple[str | bytes, ...], tmp_path: Path) -> None:
    with FakeDaemon(tmp_path / "s") as daemon:
        done = run(program, *words, LEEWARD_SOCKET=str(tmp_path / "s"))
        assert daemon.jobs.empty()

    assert 1 == done.returncode
    assert b"execute can't be sent: '\\xff' isn't text" in done.stderr, done.stderr


@pytest.mark.parametrize("words", [(b"\xff\xc3\xa9",), ("agent", b"\xff\xc3\xa9"), ("explain", b"\xff\xc3\xa9")])
def test_a_word_that_is_no_command_is_shown(program: list[str], words: tuple[str | bytes, ...], tmp_path: Path) -> None:
    said = run(program, *words, LC_ALL="C.UTF-8", XDG_STATE_HOME=str(tmp_path)).stderr

    assert b"'\\xff\xc3\xa9'" in said, said


def test_a_file_of_a_folder_that_was_removed(program: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def remove() -> None:
        os.chdir(gone)
        gone.rmdir()

    done = run(program, "exec", "1", "--put", "x", before=remove)
    assert 2 == done.returncode
    assert b"leeward: --put 'x': the current folder was removed" in done.stderr, done.stderr


@pytest.mark.parametrize("words", [("exec", "-"), ("exec", "1", "--stdin"), ("run", "-")])
def test_standard_input_that_cannot_be_read(program: list[str], words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(program, *words, stdin=os.O_WRONLY, LEEWARD_SOCKET=str(tmp_path / "s"))

    assert (1, b"leeward: can't read standard input: Bad file descriptor\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize("words", [("status",), ("run", "-"), ("agent", "list")])
def test_a_folder_as_standard_input(words: tuple[str, ...], c_build: Path) -> None:
    """On which an interpreter would die, with a stack that it prints."""
    done = run([str(c_build / "leeward")], *words, stdin=os.O_DIRECTORY)

    assert (1, b"leeward: standard input is a folder\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize("words", [("daemon", "start"), ("selftest",)])
def test_a_limit_that_was_reached_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    """With its cure, and without a traceback."""
    done = run([sys.executable, "-P", "-m", "leeward_cli"], *words, LEEWARD_SOCKET=str(tmp_path / "s"),
               before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6)))

    assert 1 == done.returncode
    assert b"this command needs more open files than a limit allows; raise it (ulimit -n" in done.stderr, done.stderr
    assert 1 == done.stderr.count(b"\n")


@pytest.mark.parametrize(("error", "text"), [
    (MemoryError(), "there isn't enough memory for this command"),
    (OSError(errno.ENOMEM, "?"), "there isn't enough memory for this command"),
    (BlockingIOError(errno.EAGAIN, "?"), "no process or thread can be started"),
    (PermissionError(errno.EACCES, "?", b"/x\xff"), r"'/x\xff': permission denied"),
    (OSError("the text"), "leeward: the text"),
])
@pytest.mark.parametrize("by_click", [False, True])
def test_no_error_of_the_system_is_a_traceback(error: Exception, text: str, by_click: bool,
                                               monkeypatch: pytest.MonkeyPatch,
                                               capfd: pytest.CaptureFixture[str]) -> None:
    def fail(*_words: object) -> int:
        raise error

    if by_click:
        monkeypatch.setattr(module, "_agent", lambda argv: run_alone(click.Command("agent", callback=fail), argv))
    else:
        monkeypatch.setattr(module, "_own", fail)

    assert 1 == module.main(["agent" if by_click else "ping"])
    said = capfd.readouterr().err
    assert text in said
    assert 1 == said.count("\n")


def test_output_that_does_not_block(program: list[str], tmp_path: Path) -> None:
    """A pipe that somebody has made non-blocking is full for a while: all output arrives."""
    output = b"x" * (1 << 20)
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with FakeDaemon(tmp_path / "s", lambda job: Report(result=Result(output, b"", 0, Outcome.FINISHED))):
        variables = {**os.environ, "PYTHONPATH": PLACES, "LEEWARD_SOCKET": str(tmp_path / "s")}
        process = subprocess.Popen([*program, "exec", "1"], env=variables, stdin=subprocess.DEVNULL, stdout=theirs,
                                   stderr=subprocess.PIPE)
        os.close(theirs)
        with open(ours, "rb") as file:
            got = file.read()
        _, said = process.communicate(timeout=60)

    assert (0, b"") == (process.returncode, said)
    assert output == got


def test_a_start_without_descriptors_is_explained_once() -> None:
    done = run([sys.executable, "-P", "-m", "leeward_cli"], "run", "1",
               before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))

    assert 1 == done.returncode
    assert b"descriptors: have a hard limit of 64 (RLIMIT_NOFILE), need 80 or more" in done.stderr
    assert 1 == done.stderr.count(b"raise it (ulimit -Hn, LimitNOFILE= of a service)")


TEXT = "é\x1b]0;t\x07 \u202e日本 🎉\u200b".encode() + b"\xff\xf0\x9f\x8e \xe2\x80"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = os.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def taken(fd: int, size: int) -> bytes:
    """*size* bytes, which a terminal may give in pieces."""
    found = b""
    while len(found) < size:
        found += os.read(fd, 4096)
    return found


@pytest.mark.parametrize("at", range(len(TEXT) + 1))
def test_output_written_in_pieces_is_shown_alike(terminal: tuple[int, int], at: int) -> None:
    master, slave = terminal
    stream = EscapedStream(slave, raw=False)
    for piece in (TEXT[:at], TEXT[at:]):
        stream.write(piece)
    stream.close()

    assert escape(TEXT) == taken(master, len(escape(TEXT)))


def test_raw_and_pipes_get_it_as_it_is(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    EscapedStream(slave, raw=True).write(b"\x1b[31m\xe2")
    assert b"\x1b[31m\xe2" == taken(master, 6)

    read_end, write_end = os.pipe()
    EscapedStream(write_end, raw=False).write(b"\x1b[31m\xe2")
    assert b"\x1b[31m\xe2" == os.read(read_end, 4096)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize(("data", "count"), [
    (b"", 0), (b"a", 0), ("é".encode(), 0), (b"a\xc3", 1), (b"\xe2\x80", 2), (b"\xf0\x9f\x8e", 3), (b"\x80\x80\x80", 0),
    (b"\xff", 0), (b"\xe2\x80\xae", 0), (b"\xf0\x9f\x8e\x89", 0)])
def test_a_partial_character_at_the_end_is_held_back(terminal: tuple[int, int], data: bytes, count: int) -> None:
    master, slave = terminal
    stream = EscapedStream(slave, raw=False)
    stream.write(data)
    os.write(slave, b"|")
    stream.close()

    shown = escape(data[:len(data) - count]) + b"|" + escape(data[len(data) - count:])
    assert shown == taken(master, len(shown))
