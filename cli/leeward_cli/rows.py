"""
Rows of the daemon's books, and other texts that jobs and clients choose, for people.

Runs in:   the CLI.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leeward_cli.job import write


def plain(text: str) -> str:
    """
    *text* in one line, with nothing in it that a terminal would act on.
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def matches(row: Mapping[str, Any], asked: str) -> bool:
    """
    Is *row* about the job, or the sandbox, *asked*?
    """
    return not asked or asked in (str(row.get("job", "")), row.get("sandbox"))


def show(pages: Iterable[Iterable[Mapping[str, Any]]], line: Callable[[Mapping[str, Any]], str], asked: str,
         as_json: bool) -> None:
    """
    Print the rows of *asked*, of all if it is "", until the user interrupts it.
    """
    try:
        for page in pages:
            for row in page:
                if matches(row, asked):
                    write(1, (json.dumps(row) if as_json else plain(line(row))).encode() + b"\n")
    except KeyboardInterrupt:
        return
