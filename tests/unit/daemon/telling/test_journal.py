"""Entries of the journal: fields that nobody can forge."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from leeward.daemon.telling.log import JournalWriter, is_ours, log, packed


def fields(entry: bytes) -> dict[str, str]:
    """The fields of an entry, read as systemd.io/JOURNAL_NATIVE_PROTOCOL says."""
    found: dict[str, str] = {}
    while entry:
        name, mark, rest = entry.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            entry = rest
        else:
            assert mark
            key = name
            size = struct.unpack("<Q", rest[:8])[0]
            value, entry = rest[8:8 + size], rest[8 + size + 1:]
            assert b"\n" == rest[8 + size:8 + size + 1]
        assert key.decode() not in found
        found[key.decode()] = value.decode()
    return found


def test_fields_of_an_entry_cannot_be_forged() -> None:
    """Priority by level, ours with a prefix, so that none is taken for one of the journal's own."""
    assert {"MESSAGE": "limit reason=time", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "leeward", "LEEWARD_EVENT": "limit",
            "LEEWARD_REASON": "time", "LEEWARD_USER": "1000", "LEEWARD__PID": "3"} == fields(packed(
                "limit reason=time", {"event": "limit", "level": "warning", "timestamp": "now", "reason": "time",
                                      "user": 1000, "_pid": 3}))


@pytest.mark.parametrize("hostile", ["a\nPRIORITY=0", "\n", "=", "\nMESSAGE\n\0\0\0\0\0\0\0\1x"])
def test_c112_a_value_stays_a_value(hostile: str) -> None:
    """Whatever lines and lengths are in it."""
    found = fields(packed(hostile, {"event": hostile, "level": "info"}))

    assert (hostile, hostile, "6") == (found["MESSAGE"], found["LEEWARD_EVENT"], found["PRIORITY"])
    assert 4 == len(found)


def test_standard_error_tells_whether_it_is_the_journal() -> None:
    """JOURNAL_STREAM says what it was at the start; a redirection since then counts."""
    read, written = os.pipe()
    about = os.fstat(written)
    try:
        assert is_ours(f"{about.st_dev}:{about.st_ino}", written)
        assert not is_ours(f"{about.st_dev}:{about.st_ino + 1}", written)
        assert not is_ours("", written)
    finally:
        os.close(read)
        os.close(written)
    assert not is_ours(f"{about.st_dev}:{about.st_ino}", written)


def test_the_log_goes_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its fields, and nothing to standard error."""
    read, written = os.pipe()
    os.set_blocking(read, False)
    about = os.fstat(written)
    path = str(tmp_path / "journal")
    monkeypatch.setattr(JournalWriter.__init__, "__defaults__", (path,))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(5)
        try:
            log.set_up("info", fd=written, journal_stream=f"{about.st_dev}:{about.st_ino}")
            log.debug("unheard")
            log.warning("limit", reason="time", user=1000)
            found = fields(heard.recv(1 << 16))
        finally:
            log.set_up()
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    os.close(read)
    os.close(written)

    assert ("limit reason=time user=1000", "1000", "4") == (found["MESSAGE"], found["LEEWARD_USER"], found["PRIORITY"])


def test_a_journal_that_is_away_costs_lines_not_jobs(tmp_path: Path) -> None:
    """How many is told when it is back."""
    path = str(tmp_path / "journal")
    writer = JournalWriter(path)
    writer.line(packed("one", {"event": "one"}))
    writer.line(packed("two", {"event": "two"}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(5)
        writer.line(packed("three", {"event": "three"}))
        said = [fields(heard.recv(1 << 16))["MESSAGE"] for _ in range(2)]
    writer.close()

    assert ["2 lines of the log were lost before this one", "three"] == said
