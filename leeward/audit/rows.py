"""
A line of the record, and how lines hang together.

Runs in:   anywhere; pure.
Trust:     none in a line. A bad one is shown as bad and skipped.

A line is an object of JSON in ASCII whose last field is "hash": SHA-256 over the bytes of the line before that field,
among them "before", the hash of the line before. So a line can't be changed, left out or moved without the next one
telling.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: What the first line of a record has as "before".
BEGINNING = "0" * 64

#: Bytes of a line, at most.
MOST_LINE = 1 << 18

_TAIL = re.compile(rb', "hash": "([0-9a-f]{64})"\}\Z')


@dataclass(frozen=True, slots=True)
class AuditRow:
    """
    One thing that was decided or happened.

    Attributes:
        time: seconds since the epoch.
        category: of rules, or "sandbox" for starts, ends and limits, "syscall" for refused calls.
        action: a word.
        decision: "approved", "denied", "expired", "superseded", "applied", "failed", "started", "ended", ...
        id: of the request; "" where there was none.
        by: who decided.
        sandbox: its id.
        duration: seconds from the request to the decision; None where there was no request.
        metadata: for JSON.
    """

    time: float
    category: str
    action: str
    decision: str
    id: str = ""
    by: str = ""
    sandbox: str = ""
    duration: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadLine:
    """
    A line as it was found.

    Attributes:
        number: in the whole record, from 1.
        row: what it says; None for a bad line.
        fault: why it is bad, or doesn't fit; "" where it does.
        hash: its own; "" for a bad one.
        file: where it is.
    """

    number: int
    row: Mapping[str, Any] | None
    fault: str
    hash: str
    file: str = ""


def written(row: AuditRow, number: int, before: str) -> tuple[bytes, str]:
    """
    Args:
        row: what to write. Metadata that is too long, or that JSON can't have, is replaced by a note.
        number: of the line in the record, from 1.
        before: the hash of the line before.

    Returns:
        The line with its newline, and its hash.
    """
    said: dict[str, Any] = {
        "number": number, "time": round(row.time, 6), "id": row.id[:100], "category": row.category[:100],
        "action": row.action[:100], "decision": row.decision[:100], "by": row.by[:100], "sandbox": row.sandbox[:100],
        "duration": None if row.duration is None else round(row.duration, 6)}
    try:
        metadata = json.dumps(dict(row.metadata), allow_nan=False)
        if len(metadata) > MOST_LINE // 2:
            raise ValueError("too long")
    except (TypeError, ValueError, RecursionError) as error:
        metadata = json.dumps({"left out": f"metadata: {error!s:.80}"})
    line = f'{json.dumps(said)[:-1]}, "metadata": {metadata}, "before": "{before}"'.encode("ascii")
    digest = hashlib.sha256(line).hexdigest()
    return line + f', "hash": "{digest}"}}\n'.encode(), digest


def read_line(line: bytes, number: int) -> ReadLine:
    """
    A line by itself, without a look at its neighbours.
    """
    line = line.removesuffix(b"\n")
    tail = _TAIL.search(line)
    if tail is None or len(line) > MOST_LINE:
        return ReadLine(number, None, "it is no line of a record", "")
    digest = tail[1].decode()
    if hashlib.sha256(line[:tail.start()]).hexdigest() != digest:
        return ReadLine(number, None, "its hash isn't its own", "")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ReadLine(number, None, "it is no JSON", "")
    if not isinstance(row, dict) or not isinstance(row.get("before"), str) or type(row.get("number")) is not int:
        return ReadLine(number, None, "it lacks what every line has", "")
    return ReadLine(number, row, "", digest)


def chained(lines: Iterable[ReadLine]) -> Iterator[ReadLine]:
    """
    The lines, each with a fault if it doesn't follow the one before.

    The first line of what is left of a record is taken as it is, unless it says that it is the first of all.
    """
    before, number, begun = "", 0, False
    for line in lines:
        fault = line.fault
        if not fault and line.row is not None:
            if not begun:
                begun = True
                number = line.row["number"] - 1
                before = BEGINNING if 0 == number else line.row["before"]
            if line.row["number"] != number + 1:
                fault = f"it says that it is line {line.row['number']}, and line {number + 1} is to come"
            elif line.row["before"] != before:
                fault = "it doesn't follow the line before"
        row = line.row
        yield ReadLine(line.number, row, fault, line.hash, line.file)
        if row is not None:
            number, before = row["number"], line.hash
