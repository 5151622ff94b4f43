"""
The log: nothing that a job or client says can forge a line, drive a terminal, or block.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from leeward.daemon.telling.log import MAX_HELD, MAX_LINE, LineWriter, Log, escape, log, stamp

LEVELS = ("debug", "info", "warning", "error")
HOSTILE = "name\nlevel=error event=forged \x1b]52;c;AAAA\x07 \x9b31m \u202e \u2028 \udc80 \x00 end"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, written = os.pipe()
    log.load()
    yield read, written
    os.close(read)
    os.close(written)
    log.set_up()


@pytest.mark.parametrize("as_json", [False, True])
def test_c112_values_are_escaped(as_json: bool, pipe: tuple[int, int]) -> None:
    """
    One printable line an event, as text and as JSON, and in what JSON holds.
    """
    read, written = pipe
    log.set_up(as_json=as_json, fd=written)
    inner = {HOSTILE: [HOSTILE, HOSTILE.encode("utf-8", "replace")]}
    log.warning("event", who=HOSTILE, **{HOSTILE: 1}, inner=inner)
    text = os.read(read, 1 << 16).decode()

    assert 1 == text.count("\n")
    assert text.rstrip("\n").isprintable()
    if as_json:
        assert json.loads(text)["who"].isprintable()


def test_c112_lines_are_bounded(pipe: tuple[int, int]) -> None:
    """
    A name of 1 MB is cut, and so are a thousand values.
    """
    read, written = pipe
    log.set_up(fd=written)
    log.info("event", name="x" * 1_000_000)
    log.info("event", **{f"key{number}": "y" * 1000 for number in range(1000)})
    lines = os.read(read, 1 << 16).splitlines()

    assert 2 == len(lines)
    assert all(len(line) < MAX_LINE for line in lines)
    assert b"(1000000 characters)" in lines[0]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_event_says_when_and_how_grave(as_json: bool, pipe: tuple[int, int]) -> None:
    """
    Time, level and event come first, whatever else there is, and nothing can take their names.
    """
    read, written = pipe
    log.set_up(as_json=as_json, fd=written)
    log.error("event", level="info", timestamp="never", **{f"key{number}": number for number in range(50)})
    text = os.read(read, 1 << 16).decode()

    if as_json:
        said = json.loads(text)
        assert ["timestamp", "level", "event", "key0"] == list(said)[:4]
        time, level, event = said["timestamp"], said["level"], said["event"]
    else:
        time, level, event, first = text.split()[:4]
        assert "key0=0" == first
    assert ("error", "event") == (level, event)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", time)


def test_the_time_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    To the microsecond, with zeros where they belong.
    """
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_000_000_007_999)

    assert "2001-09-09T01:46:40.000007Z" == stamp()


def test_what_is_said_before_the_library_is_there_is_written_then(pipe: tuple[int, int]) -> None:
    """
    In order, with the time at which it was said; of too many the last ones.
    """
    read, written = pipe
    early = Log()
    early.set_up("debug", fd=written)
    before = stamp()
    for number in range(MAX_HELD + 3):
        early.debug("an event", number=number)
    after = stamp()
    early.load()
    early.load()
    early.info("at once")
    lines = os.read(read, 1 << 16).decode().splitlines()

    assert [f"number={number}" for number in range(3, MAX_HELD + 3)] == [line.split()[-1] for line in lines[:-1]]
    assert all(before <= line.split()[0] <= after for line in lines[:-1])
    assert "at once" in lines[-1]


def test_rich_is_left_out_and_can_be_imported_afterwards(tmp_path: Path) -> None:
    """
    structlog would import it where it is installed; that takes as long as structlog itself, and a daemon has no use
    for it.
    """
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich/__init__.py").write_text("")
    (tmp_path / "rich/console.py").write_text("")
    (tmp_path / "rich/traceback.py").write_text("")
    program = """
import sys
from leeward.daemon.telling.log import log
log.load()
print("rich" in sys.modules, "structlog" in sys.modules)
import rich
print(rich.__file__)
"""
    path = f"{tmp_path}:{Path(leeward.__file__).parents[1]}"
    said = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                          text=True, check=True)

    assert ["False True", str(tmp_path / "rich/__init__.py")] == said.stdout.splitlines()


def test_asyncio_is_left_out_until_something_is_asked_of_it() -> None:
    """
    Only methods of structlog's that are awaited use it, and they find the real one.
    """
    program = """
import sys
from leeward.daemon.telling.log import log
log.load()
print([name for name in ("asyncio", "ssl") if name in sys.modules])
from structlog import stdlib
later = stdlib.asyncio.get_running_loop
import asyncio
print(later is asyncio.get_running_loop, asyncio.__file__ is not None)
"""
    at_once = """
import sys
from leeward.daemon.telling import log
with log._only_what_is_needed():
    from asyncio import get_running_loop
import asyncio
print(get_running_loop is asyncio.get_running_loop, "rich" in sys.modules)
"""
    path = str(Path(leeward.__file__).parents[1])
    said = [subprocess.run([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                           text=True, check=True).stdout.splitlines() for text in (program, at_once)]

    assert [["[]", "True True"], ["True False"]] == said


def test_an_exception_comes_with_its_traceback(pipe: tuple[int, int]) -> None:
    """
    In the same one line.
    """
    read, written = pipe
    log.set_up(fd=written)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("a request failed")
    text = os.read(read, 1 << 16).decode()

    assert 1 == text.count("\n")
    assert "error   a request failed" in text
    assert "Traceback" in text


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("later", [False, True])
def test_levels(level: str, later: bool, pipe: tuple[int, int]) -> None:
    """
    What is below the level isn't written, what is of it is; also where it was another before.
    """
    read, written = pipe
    log.set_up("error" if later and "error" != level else level, fd=written)
    log.adjust(level, as_json=False)
    for each in LEVELS:
        getattr(log, each)("an event")
    said = os.read(read, 1 << 16).decode().splitlines()

    assert LEVELS[LEVELS.index(level):] == tuple(line.split()[1] for line in said)


def test_c108_a_reader_that_stopped_reading_costs_lines_not_time(pipe: tuple[int, int]) -> None:
    """
    A full pipe doesn't block, and what was lost is told when it drains.
    """
    read, written = pipe
    fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, 8192)
    writer = LineWriter(written)
    for _ in range(50):
        writer.line("x" * 1000)
    first = os.read(read, 1 << 16)
    writer.line("back")
    second = os.read(read, 1 << 16)
    writer.line("and on")

    kept = first.count(b"\n")
    assert 0 < kept < 50
    assert f"{50 - kept} lines of the log were lost before this one\nback\n".encode() == second
    assert b"and on\n" == os.read(read, 1 << 16)


def test_c108_a_full_disk_is_survived() -> None:
    """
    ENOSPC is counted, not raised.
    """
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        LineWriter(full).line("lost")
    finally:
        os.close(full)


def test_escape_keeps_ordinary_text() -> None:
    """
    Other scripts are readable.
    """
    assert "naïve 日本 path/to-x.py" == escape("naïve 日本 path/to-x.py")
