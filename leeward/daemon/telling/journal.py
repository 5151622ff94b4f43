"""
Writes lines of the log with their fields to systemd's journal, in the journal's own protocol.

Runs in:   the daemon, where standard error is the journal's. `packed` is pure.
Trust:     values are what `log.clean` made of them; names are ours.
Source:    systemd.io/JOURNAL_NATIVE_PROTOCOL, systemd.journal-fields(7)

`journalctl -u leeward LEEWARD_USER=1000` then finds what a user was refused.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

SOCKET = "/run/systemd/journal/socket"
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}


def is_ours(stream: str, fd: int) -> bool:
    """Whether *fd* is the stream that JOURNAL_STREAM names as *stream*. It may have been redirected since."""
    try:
        about = os.fstat(fd)
    except OSError:
        return False
    return f"{about.st_dev}:{about.st_ino}" == stream


def packed(message: str, event: Mapping[str, Any]) -> bytes:
    """Return one entry in the journal's format: *message*, which people read, and the fields of *event*."""
    priority = PRIORITIES.get(str(event.get("level")), 6)
    fields: dict[str, Any] = {"MESSAGE": message, "PRIORITY": priority, "SYSLOG_IDENTIFIER": "leeward"}
    for name, value in event.items():
        if name not in ("level", "timestamp"):
            fields[f"LEEWARD_{_name(name)}"] = value
    return b"".join(_entry(name, str(value).encode("utf-8", "replace")) for name, value in fields.items())


def _name(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text.upper())[:48]


def _entry(name: str, value: bytes) -> bytes:
    if b"\n" in value:
        return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name.encode() + b"=" + value + b"\n"


class JournalWriter:
    """Sends entries and never waits; entries that couldn't be sent are counted, and their number is logged later."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._lost = 0

    def line(self, entry: bytes) -> None:
        if self._lost and self._send(packed(f"{self._lost} lines of the log were lost before this one",
                                            {"level": "warning", "event": "lines lost"})):
            self._lost = 0
        if not self._send(entry):
            self._lost += 1

    def _send(self, entry: bytes) -> bool:
        try:
            self._socket.sendto(entry, self._path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()
