"""
Formats requests for a terminal: as a line each, or one with its subject, remarks on what could be overlooked, and diff.

Trust:     none in the texts. A line from a sandbox stays one line, without control characters; invisible characters are
           shown as escapes, in another colour than the text around them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any

from leeward_cli.rows import plain

_RED, _GREEN, _CYAN, _YELLOW, _BOLD, _OFF = ("\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[1m", "\x1b[0m")

#: The greatest number of lines, and the lines of context around a change.
MOST_LINES, AROUND = 2000, 3


def line_of(row: Mapping[str, Any]) -> str:
    state = _state(row)
    words = [f"{row['id']:>5}", f"{row['category']:10}", f"{row['action']:8}", f"{state:10}", row["title"]]
    if row.get("repeats"):
        words.append(f"(+{row['repeats']})")
    if row.get("reason"):
        words.append(f"- {row['reason']}")
    if row.get("note") and row["status"] != "pending":
        words.append(f"- {row['note']}")
    return plain("  ".join(words))[:500]


def _state(row: Mapping[str, Any]) -> str:
    if row["status"] == "pending":
        left = None if row.get("expires") is None else max(0, round(row["expires"] - time.time()))
        return "pending" if left is None else f"{left} s left"
    return str({"applied": "done", "failed": "failed"}.get(row.get("stage", ""), row["status"]))


def lines_of(request: Mapping[str, Any], detail: Mapping[str, Any], color: bool) -> list[str]:
    """Lines for a terminal about a request and the action that it would carry out, both as the service sends them."""
    found = list[str]()
    for line in _all(request, detail):
        if len(found) == MOST_LINES:
            found.append("... there is more: --json has all of it")
            break
        code, text = line
        found.append(f"{code}{_marked(text, code)}{_OFF}" if color else plain(text))
    return found


def _marked(text: str, code: str) -> str:
    """*text* on one line, with yellow escapes for invisible characters."""
    return "".join(one if one.isprintable() else f"{_YELLOW}{ascii(one)[1:-1]}{_OFF}{code}" for one in text)


def _all(request: Mapping[str, Any], detail: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield _BOLD, f"request {request['id']}: {request['category']} {request['action']}, {request['status']}"
    for name in ("sandbox", "asker", "reason", "decided_by", "rule", "note", "digest"):
        if request.get(name):
            yield "", f"{name:11} {request[name]}"
    yield "", f"{'asked':11} {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(request['created']))}"
    metadata = request.get("metadata") or {}
    remarks = metadata.get("remarks") if isinstance(metadata, Mapping) else None
    for remark in remarks if isinstance(remarks, list) else ():
        yield _YELLOW, f"mind        {remark}"
    kind = detail.get("kind")
    if kind == "file":
        yield from _file(detail)
    elif kind == "command":
        yield "", f"command     {detail['line'] or ' '.join(map(_word, detail['argv']))}"
        yield "", f"in          {detail['cwd'] or '/workspace'}, for {detail['timeout']:g} s at most"
        yield "", f"where       {'a new sandbox of ' + detail['profile'] if detail['profile'] else 'the one that asks'}"
    elif kind == "config":
        yield "", f"sets        {detail['key']} = {detail['value']!r}"
    elif kind == "push":
        yield "", f"pushes      {detail['commit']} to {detail['branch']} of {detail['remote']}"
        for commit in detail["commits"]:
            yield "", f"  {commit}"
        for line in detail["diff"].split("\n"):
            yield {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1], ""), line
    else:
        for line in str(request.get("description", "")).split("\n"):
            yield "", line


def _word(word: str) -> str:
    return shlex.quote(word)


def _file(detail: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "", f"file        {detail['path']}"
    if detail["stale"]:
        yield _YELLOW, f"stale       {detail['stale']}"
    if detail["type"] != "file" or detail["base_type"] not in ("file", "none"):
        yield "", f"becomes     {detail['type']} {detail['link']}, was {detail['base_type']} {detail['base_link']}"
    if detail["mode"] != detail["base_mode"] and "none" not in (detail["base_type"], detail["type"]):
        yield "", f"mode        {detail['base_mode']:o} becomes {detail['mode']:o}"
    before = (detail["before"] or "").split("\n")
    for place, hunk in enumerate(detail["hunks"], 1):
        start = hunk["old_start"] - 1
        yield _CYAN, f"@@ hunk {place}: line {hunk['old_start']} @@"
        for line in before[max(0, start - AROUND):start]:
            yield "", f" {line}"
        for sign, code, lines in (("-", _RED, hunk["old"]), ("+", _GREEN, hunk["new"])):
            for line in lines:
                yield code, sign + line.removesuffix("\n") + ("" if line.endswith("\n") else "  (no newline)")
        end = start + len(hunk["old"])
        for line in before[end:end + AROUND]:
            yield "", f" {line}"
    if detail["hunks"] or detail["type"] != "file":
        return
    if detail["after"] is None:
        yield "", "its content isn't text, or too long to be shown"
    elif detail["after"] != detail["before"]:
        yield _CYAN, "@@ decided as a whole; the new content @@"
        for line in detail["after"].split("\n"):
            yield _GREEN, f"+{line}"
