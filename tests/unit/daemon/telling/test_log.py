"""The log: nothing that a job or client says can forge a line, drive a terminal, or block."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator

import pytest
import structlog

from leeward.base.line_writer import MAX_LINE, LineWriter
from leeward.daemon.telling.log import escape, log, stamp

LEVELS = ("debug", "info", "warning", "error")
HOSTILE = "name\nlevel=error event=forged \x1b]52;c;AAAA\x07 \x9b31m \u202e \u2028 \udc80 \x00 end"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, written = os.pipe()
    yield read, written
    os.close(read)
    os.close(written)
    log.set_up()


@pytest.mark.parametrize("as_json", [False, True])
def test_c112_values_are_escaped(as_json: bool, pipe: tuple[int, int]) -> None:
    """One printable line an event, as text and as JSON, and in what JSON holds."""
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
    """A name of 1 MB is cut, and so are a thousand values."""
    read, written = pipe
    log.set_up(fd=written)
    log.info("event", name="x" * 1_000_000)
    log.info("event", **{f"key{number}": "y" * 1000 for number in range(1000)})
    lines = os.read(read, 1 << 16).splitlines()

    assert 2 == len(lines)
    assert all(len(line) < MAX_LINE for line in lines)
    assert b"(1000000 characters)" in lines[0]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_event_has_a_time_and_a_level(as_json: bool, pipe: tuple[int, int]) -> None:
    """Time, level and event come first, whatever else there is, and nothing can take their names."""
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
    """To the microsecond, with zeros where they belong."""
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_000_000_007_999)

    assert "2001-09-09T01:46:40.000007Z" == stamp()


def test_fields_may_have_the_names_of_the_loggers_own_parameters(pipe: tuple[int, int]) -> None:
    read, written = pipe
    log.set_up(fd=written)
    log.info("an event", event="another", self=1, method_name=2, fields=3, when=4)

    assert b"info    an event self=1 method_name=2 fields=3 when=4\n" == os.read(read, 1 << 16).partition(b" ")[2]


def test_structlog_is_whole_beside_the_log() -> None:
    assert structlog.get_logger().bind(a=1) is not None
    assert sys.modules["structlog"] is structlog


def test_an_exception_comes_with_its_traceback(pipe: tuple[int, int]) -> None:
    """In the same one line."""
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
def test_lines_below_the_level_are_not_written(level: str, later: bool, pipe: tuple[int, int]) -> None:
    """What is below the level isn't written, what is of it is; also where it was another before."""
    read, written = pipe
    log.set_up("error" if later and "error" != level else level, fd=written)
    log.adjust(level, as_json=False)
    for each in LEVELS:
        getattr(log, each)("an event")
    said = os.read(read, 1 << 16).decode().splitlines()

    assert LEVELS[LEVELS.index(level):] == tuple(line.split()[1] for line in said)


def test_c108_a_reader_that_stopped_reading_costs_lines_not_time(pipe: tuple[int, int]) -> None:
    """A full pipe doesn't block, and what was lost is told when it drains."""
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
    """ENOSPC is counted, not raised."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        LineWriter(full).line("lost")
    finally:
        os.close(full)


def test_escape_keeps_ordinary_text() -> None:
    """Other scripts are readable."""
    assert "naïve 日本 path/to-x.py" == escape("naïve 日本 path/to-x.py")
