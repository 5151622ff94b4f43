"""Prints rows of the daemon's logs, and other texts that jobs and clients choose, on a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from leeward.client.connection import BlockingConnection
from leeward.errors import BadReply
from leeward.wire.replies import MAX_ID
from leeward_cli.messages import complain, write

#: Seconds that the daemon may take to answer, and that one request waits for more rows.
_ANSWER_S, _WAIT_S = 5.0, 60.0
#: The greatest number of answers that are read without `follow`: the daemon keeps fewer rows.
_MOST_PAGES = 2000


class RowLog:
    """
    What the daemon on *path* remembers for this user, by the operation *op*. Rows that don't fit are a BadReply.

    Attributes:
        forgotten: the number of rows that the daemon has dropped.
    """

    def __init__(self, path: str, op: str, fits: Callable[[Mapping[str, Any]], bool]) -> None:
        self._path, self._op, self._fits = path, op, fits
        self.forgotten = 0

    def pages(self, follow: bool, after: int = 0) -> Iterator[list[dict[str, Any]]]:
        """The existing rows with numbers above *after*, the oldest first; then new ones, if *follow*."""
        connection = BlockingConnection(self._path)
        try:
            wait, pages = 0.0, 0
            while True:
                reply, _ = connection.call(self._op, {"after": after, "wait": wait}, time.monotonic() + wait + _ANSWER_S)
                found = self._checked(reply.ok or {})
                if found:
                    yield found
                    after, wait, pages = max(row["number"] for row in found), 0.0, pages + 1
                    if pages >= _MOST_PAGES and not follow:
                        return  # a sandbox may add rows as fast as they are read
                elif follow:
                    wait = _WAIT_S
                else:
                    return
        finally:
            connection.close()

    def last(self) -> int:
        """The number of the newest row; 0 for none."""
        connection = BlockingConnection(self._path)
        try:
            reply, _ = connection.call(self._op, {"after": MAX_ID}, time.monotonic() + _ANSWER_S)
        finally:
            connection.close()
        last = (reply.ok or {}).get("last")
        if type(last) is not int:
            raise BadReply("the daemon's rows are malformed")
        return last

    def rows(self) -> list[dict[str, Any]]:
        return [row for page in self.pages(False) for row in page]

    def _checked(self, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        found, forgotten = answer.get("events"), answer.get("forgotten", 0)
        if not isinstance(found, list) or type(forgotten) is not int or not all(
                isinstance(row, dict) and self._fits(row) for row in found):
            raise BadReply("the daemon's rows are malformed")
        self.forgotten = forgotten
        return found


def plain(text: str) -> str:
    """*text* on one line, with escapes for characters that a terminal would interpret or not show."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def fields(found: Mapping[str, Any], width: int) -> Iterator[str]:
    """Lines about each field: its name once, and each value in it on a line of its own."""
    for key, value in found.items():
        values = value if isinstance(value, list) else [value]
        for number, line in enumerate(values if values not in ([], [""]) else ["none"]):
            yield f"{'' if number else key:<{width}}  {line}".rstrip()


def matches(row: Mapping[str, Any], asked: str) -> bool:
    """Whether *row* is about the job or sandbox *asked*; True for all rows if *asked* is ""."""
    return not asked or asked in (str(row.get("job", "")), row.get("sandbox"))


def show(pages: Iterable[Iterable[Mapping[str, Any]]], line: Callable[[Mapping[str, Any]], str], asked: str,
         as_json: bool, none: str) -> None:
    """Print the rows of the job or sandbox *asked*, or all if it is "", until Ctrl-C; *none* says that there are none."""
    found = False
    try:
        for page in pages:
            for row in page:
                if matches(row, asked):
                    found = True
                    write(1, (json.dumps(row) if as_json else plain(line(row))).encode() + b"\n")
    except KeyboardInterrupt:
        return
    if not found and not as_json:
        complain(none)
