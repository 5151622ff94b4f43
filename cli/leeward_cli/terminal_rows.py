"""Rows of the daemon's logs and of what is stored, and other texts that jobs and clients choose, on a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from leeward_cli.messages import complain, write


def plain(text: str) -> str:
    """*text* on one line, with escapes for characters that a terminal would interpret or not show."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def second(seconds: float) -> str:
    """A time since the epoch, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def mebibytes(size: float) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def stored(rows: Sequence[Mapping[str, Any]], parts: str) -> Iterator[str]:
    """Lines about what is stored by name: how many *parts* it has, its size, and when it was made."""
    width = max([len(row["name"]) for row in rows] + [4])
    for row in rows:
        when = second(row["created"])[:-3] if row["created"] else "unusable"
        yield f"{row['name']:<{width}}  {row[parts]:>4} {parts}  {mebibytes(row['size']):>10}  {when}"


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
