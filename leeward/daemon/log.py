"""
The daemon's log: structlog, as text or JSON, one line an event.

Runs in:   the daemon.
Trust:     values may come from jobs and clients. Control characters are escaped, so that
           no value can forge a line or drive a terminal, and every length is bounded.
Waits:     never. A reader that stopped reading, or a full disk, costs lines, not jobs:
           what couldn't be written is counted, and told when writing works again.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from leeward.daemon import journal

#: Characters of one value, and of an event's name.
MAX_VALUE = 500
#: Values of one event.
MAX_VALUES = 24
#: Bytes of a line. A pipe that polls writable takes as much without blocking (PIPE_BUF, pipe(7)).
MAX_LINE = 4096


def escape(text: str, limit: int = MAX_VALUE) -> str:
    """
    *text* without anything that a terminal or a line-wise reader could take for more than text.
    """
    if len(text) <= limit and text.isprintable():
        return text
    # Bidi and zero-width characters aren't printable either.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:limit])
    return shown if len(text) <= limit else f"{shown}... ({len(text)} characters)"


def _bounded(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, bytes):
        return escape(repr(value[:MAX_VALUE]))
    if isinstance(value, Mapping):
        return {escape(str(key), 80): _bounded(item) for key, item in list(value.items())[:MAX_VALUES]}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_bounded(item) for item in list(value)[:MAX_VALUES]]
    return escape(str(value))


def clean(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """
    A structlog processor: every value escaped and bounded.
    """
    return {escape(str(key), 80): _bounded(value) for key, value in list(event.items())[:MAX_VALUES]}


def as_text(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """
    A structlog processor: time, level, event, then key=value.
    """
    head = f"{event.pop('timestamp', '')} {event.pop('level', ''):7} {event.pop('event', '')}"
    return " ".join([head, *(f"{key}={_quoted(value)}" for key, value in event.items())])


def _quoted(value: Any) -> str:
    text = str(value)
    return repr(text) if not text or " " in text or "=" in text or '"' in text else text


class Writer:
    """
    Writes lines to a descriptor, and never waits for it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lost = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def line(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[:MAX_LINE - 1] + b"\n"
        if self._lost and self._write(b"%d lines of the log were lost before this one\n" % self._lost):
            self._lost = 0
        if not self._write(data):
            self._lost += 1

    def _write(self, data: bytes) -> bool:
        try:
            return any(events & select.POLLOUT for _, events in self._poll.poll(0)) and os.write(self._fd, data) > 0
        except OSError:
            return False

    # The names by which structlog calls, one for each level.
    debug = info = warning = error = critical = msg = line


class _Choice:
    """
    What a reload may change. Loggers that were used once have their processors for good.
    """

    least = 20
    as_json = False


_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_as_json = structlog.processors.JSONRenderer()


_Every: Any = structlog.make_filtering_bound_logger(0)


class _Logger(_Every):  # type: ignore[misc]  # made at run time
    """
    Structlog's own, with a level that may change; an event below it costs a comparison.
    """

    def debug(self, event: str, *args: Any, **fields: Any) -> Any:
        return super().debug(event, *args, **fields) if _Choice.least <= 10 else None

    def info(self, event: str, *args: Any, **fields: Any) -> Any:
        return super().info(event, *args, **fields) if _Choice.least <= 20 else None

    def warning(self, event: str, *args: Any, **fields: Any) -> Any:
        return super().warning(event, *args, **fields) if _Choice.least <= 30 else None


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
    return _as_json(logger, method, event) if _Choice.as_json else as_text(logger, method, event)


def _for_journal(logger: Any, method: str, event: MutableMapping[str, Any]) -> bytes:
    fields = dict(event)
    # The journal knows time and level by itself.
    text = as_text(logger, method, {name: value for name, value in event.items() if name not in ("timestamp", "level")})
    return journal.packed(text.strip(), fields)


def adjust(level: str, as_json: bool) -> None:
    """
    Write from *level* on from now on, and as text or JSON.
    """
    _Choice.least, _Choice.as_json = _LEVELS[level], as_json


def set_up(level: str = "info", as_json: bool = False, fd: int = 2, journal_stream: str = "") -> None:
    """
    Make structlog's loggers write to *fd*, from *level* on.

    Args:
        journal_stream: JOURNAL_STREAM of the environment; if *fd* is that stream, lines go to the
            journal with their fields.
    """
    adjust(level, as_json)
    to_journal = bool(journal_stream) and journal.is_ours(journal_stream, fd)
    writer: Any = journal.Writer() if to_journal else Writer(fd)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            clean,
            _for_journal if to_journal else _render,
        ],
        wrapper_class=_Logger,
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=True,
    )
