"""
A line of the record, and the chain of lines.

Trust:     none in a line. A bad line is shown as bad and skipped.
Format:    a line is a JSON object in ASCII. Its last field "hash" is the SHA-256 of the line's bytes before that field,
           and the field "before" is the hash of the line before. So if a line was changed, removed or moved, the next
           line doesn't fit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: The field "before" of the first line of a record.
BEGINNING = "0" * 64

#: The greatest length of a line in bytes.
MOST_LINE = 1 << 18

_TAIL = re.compile(rb', "hash": "([0-9a-f]{64})"\}\Z')


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A decision or an event."""

    time: float  # seconds since the epoch
    category: str  # a category of rules; or "sandbox" for starts, ends and limits, "syscall" for refused calls
    action: str  # one word for the action
    decision: str  # "approved", "denied", "expired", "superseded", "applied", "failed", "started", "ended", ..
    id: str = ""  # the request's id; "" for none
    by: str = ""  # who or what has decided, as in `ApprovalRequest.decided_by`; or "policy", "sync" or ""
    sandbox: str = ""  # the sandbox's id; "" for none
    duration: float | None = None  # seconds from the request to the decision; None without a request
    metadata: Mapping[str, Any] = field(default_factory=dict)  # further values, which JSON can represent


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A line that was read."""

    number: int  # the line's place in the files, from 1
    row: Mapping[str, Any] | None  # the line's object; None for a bad line
    fault: str  # why the line is bad or doesn't fit the line before; "" if it is intact
    hash: str  # the line's own hash; "" for a bad line
    file: str = ""  # the name of the line's file


def written(row: AuditRow, number: int, before: str) -> tuple[bytes, str]:
    """
    A row as a line with its newline, and the line's hash. Metadata that is too long, or that JSON can't represent, is
    replaced by a note. *number* is the line's in the chain, from 1, *before* the hash of the line before.
    """
    said: dict[str, Any] = {
        "number": number, "time": round(row.time, 6), "id": row.id[:100], "category": row.category[:100],
        "action": row.action[:100], "decision": row.decision[:100], "by": row.by[:100], "sandbox": row.sandbox[:100],
        "duration": None if row.duration is None else round(row.duration, 6)}
    try:
        metadata = json.dumps(dict(row.metadata), allow_nan=False)
        if len(metadata) > MOST_LINE // 2:
            metadata = json.dumps({"left out": "metadata: too long"})
    except (TypeError, ValueError, RecursionError) as error:
        metadata = json.dumps({"left out": f"metadata: {type(error).__name__}"})
    line = f'{json.dumps(said)[:-1]}, "metadata": {metadata}, "before": "{before}"'.encode("ascii")
    digest = hashlib.sha256(line).hexdigest()
    return line + f', "hash": "{digest}"}}\n'.encode(), digest


def read_line(line: bytes, number: int) -> ReadLine:
    """Parse and check a line by itself, without the lines around it."""
    line = line.removesuffix(b"\n")
    tail = _TAIL.search(line)
    if tail is None or len(line) > MOST_LINE:
        return ReadLine(number, None, "it isn't a line of a record", "")
    digest = tail[1].decode()
    if hashlib.sha256(line[:tail.start()]).hexdigest() != digest:
        return ReadLine(number, None, "its hash isn't that of its content", "")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ReadLine(number, None, "it isn't JSON", "")
    if not isinstance(row, dict) or not isinstance(row.get("before"), str) or type(row.get("number")) is not int:
        return ReadLine(number, None, "it lacks its number or the hash of the line before", "")
    return ReadLine(number, row, "", digest)


def chained(lines: Iterable[ReadLine]) -> Iterator[ReadLine]:
    """
    *lines*, each with a fault if it doesn't follow the line before. The first line may follow any line that rotation
    has removed, unless its number is 1.
    """
    before, number, begun = "", 0, False
    for line in lines:
        fault = line.fault
        if not fault and line.row is not None:
            if not begun:
                begun = True
                number = line.row["number"] - 1
                before = BEGINNING if number == 0 else line.row["before"]
            if line.row["number"] != number + 1:
                fault = f"its number is {line.row['number']}, but line {number + 1} should follow"
            elif line.row["before"] != before:
                fault = "it doesn't follow the line before"
        row = line.row
        yield ReadLine(line.number, row, fault, line.hash, line.file)
        if row is not None:
            number, before = row["number"], line.hash
