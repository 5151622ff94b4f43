"""Prints rows of the daemon's logs, and other texts that jobs and clients choose, on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from leeward_cli.messages import complain, write


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
