"""
Requests as text for a terminal, and `leeward approvals watch`, which shows pending ones as they arrive and decides by
keys.

A thread listens for the service's events; after each the main thread, which also draws and reads keys, fetches the
table.

Trust:     none in the texts. A line from a sandbox stays one line, without control characters; invisible characters are
           shown as escapes, in another colour than the text around them. A key decides about the request that was on
           the screen when the key was pressed, by the request's id, and a request's content never changes. A sandbox
           can withdraw its own request by making a new one, and so move the mark to another request at a moment of its
           choice. So a request that gets the mark in this way must be shown for a while before a key decides about it.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leeward.apps.approvals.carrying.orders import mode_text
from leeward.apps.approvals.durations import age_text
from leeward.apps.approvals.operator_connection import ApprovalsAway, OperatorConnection
from leeward.errors import LeewardError
from leeward_cli.screen import alternate_screen, draw
from leeward_cli.terminal_rows import plain, second

_RED, _GREEN, _CYAN, _YELLOW, _BOLD, _OFF = ("\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[1m", "\x1b[0m")

#: The greatest number of lines, and the lines of context around a change.
MOST_LINES, AROUND = 2000, 3


def line_of(row: Mapping[str, Any]) -> str:
    state = _state(row)
    of = [os.path.basename(row.get("project", ""))[:40], row.get("asker", "")[:40], age_text(time.time() - row["created"])]
    words = [f"{row['id']:>5}", f"{row['category']:10}", f"{row['action']:8}", f"{state:10}", ", ".join(filter(None, of)),
             row["title"]]
    if row.get("repeats"):
        words.append(f"(+{row['repeats']})")
    if row.get("reason"):
        words.append(f"- {row['reason']}")
    if row.get("note") and row["status"] != "pending" and row["note"] != state:
        words.append(f"- {row['note']}")
    return plain("  ".join(words))[:500]


def _state(row: Mapping[str, Any]) -> str:
    if row["status"] == "pending":
        left = None if row.get("expires") is None else max(0, round(row["expires"] - time.time()))
        return "pending" if left is None else f"{left} s left"
    if row.get("stage") == "applied" and str(row.get("note")).startswith("exit status"):
        return str(row["note"])
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
    return "".join(one if one.isprintable() else f"{_YELLOW}{ascii(one)[1:-1]}{_OFF}{code}" for one in text)


def _all(request: Mapping[str, Any], detail: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield _BOLD, f"request {request['id']}: {request['category']} {request['action']}, {request['status']}"
    for name in ("sandbox", "asker", "reason", "decided_by", "rule", "note", "digest"):
        if request.get(name):
            yield "", f"{name:11} {request[name]}"
    yield "", f"{'asked':11} {second(request['created'])}"
    metadata = request.get("metadata") or {}
    remarks = metadata.get("remarks") if isinstance(metadata, Mapping) else None
    for remark in remarks if isinstance(remarks, list) else ():
        yield _YELLOW, f"mind        {remark}"
    kind = detail.get("kind")
    if kind == "file":
        yield from _file(detail)
    elif kind == "command":
        yield "", f"command     {detail['line'] or shlex.join(detail['argv'])}"
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


def _file(detail: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "", f"file        {detail['path']}"
    if detail["stale"]:
        yield _YELLOW, f"stale       {detail['stale']}"
    if detail["type"] != "file" or detail["base_type"] not in ("file", "none"):
        yield "", f"becomes     {detail['type']} {detail['link']}, was {detail['base_type']} {detail['base_link']}"
    if detail["mode"] != detail["base_mode"] and "none" not in (detail["base_type"], detail["type"]):
        yield "", f"mode        {mode_text(detail['base_mode'])} becomes {mode_text(detail['mode'])}"
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


# --- the screen ---------------------------------------------------------------

_REVERSE = "\x1b[7m"
#: The greatest time between the two keys of "aa", and the time between two drawings of countdowns, in seconds.
_SECOND_S, _DRAW_S = 0.4, 1.0

#: Seconds for which no key decides about a request after the mark has moved to it by itself.
LOOK_S = 0.5

HELP = ("a approve   aa approve all that are shown   d deny   A always allow   D always deny",
        "j k or arrows move   enter the whole request   l the last decisions   ? this   q quit")

_ARROWS = {b"\x1b[A": "k", b"\x1b[B": "j", b"\x1bOA": "k", b"\x1bOB": "j"}


@dataclass(slots=True)
class WatchState:
    """
    The state of the screen.

    Attributes:
        selected, shown: the id of the marked request, and of the one in the view "one"; 0 for none.
        marked: when the mark last moved to another request by itself, in seconds of `time.monotonic`.
        view: "pending", "recent", "help" or "one"; `lines` are those of a view that isn't the table.
    """

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    selected: int = 0
    shown: int = 0
    marked: float = 0.0
    view: str = "pending"
    lines: list[str] = field(default_factory=list)
    message: str = ""

    def take(self, rows: list[Mapping[str, Any]]) -> None:
        """Take new rows. The mark stays on its request, or moves to the request that is in its place."""
        place = self._place()
        self.rows = rows
        if rows and self.selected not in [row["id"] for row in rows]:
            self.selected = rows[min(place, len(rows) - 1)]["id"]
        if not rows:
            self.selected = 0

    def _place(self) -> int:
        return next((place for place, row in enumerate(self.rows) if row["id"] == self.selected), 0)

    def move(self, by: int) -> None:
        if self.rows:
            self.selected = self.rows[max(0, min(len(self.rows) - 1, self._place() + by))]["id"]

    def screen(self, height: int, width: int) -> list[str]:
        head = f"{_BOLD}{len(self.rows)} pending{_OFF}   ? for help"
        if self.view == "pending":
            first = max(0, self._place() - height + 5)
            body = [self._row(row, width) for row in self.rows[first:first + height - 3]] or ["nothing waits"]
        else:
            body = self.lines[:height - 3]
        return [head, *body, "", plain(self.message)[:width]]

    def _row(self, row: Mapping[str, Any], width: int) -> str:
        text = line_of(row)[:width]
        return f"{_REVERSE}{text}{_OFF}" if row["id"] == self.selected else text


class WatchKeys:
    def __init__(self, connection: OperatorConnection) -> None:
        self._connection, self.state = connection, WatchState()

    def reload(self) -> None:
        before = self.state.selected
        self.state.take(self._connection.call("GET", "/api/requests?which=pending&limit=500")["requests"])
        if before and self.state.selected != before:
            self.state.marked = time.monotonic()

    def press(self, key: str) -> bool:
        """Carry out the action of *key* ("aa" is one key). Returns False if it ends the command."""
        state = self.state
        if key == "q":
            if state.view == "pending":
                return False
            state.view = "pending"
        elif key in ("j", "k"):
            state.move(1 if key == "j" else -1)
        elif key == "?":
            state.view, state.lines = ("pending" if state.view == "help" else "help"), list(HELP)
        elif key == "l":
            recent = self._connection.call("GET", "/api/requests?which=recent&limit=50")["requests"]
            state.view, state.lines = ("pending" if state.view == "recent" else "recent"), list(map(line_of, recent))
        elif key in ("\r", "\n") and state.selected:
            request = self._connection.call("GET", f"/api/requests/{state.selected}")
            detail = self._connection.call("GET", f"/api/requests/{state.selected}/detail")
            state.view, state.lines, state.shown = "one", lines_of(request, detail, True), state.selected
        elif key in _DECISIONS and (number := {"pending": state.selected, "one": state.shown}.get(state.view, 0)):
            self._decide(number, *_DECISIONS[key])
        return True

    def _decide(self, number: int, word: str, always: bool, every: bool) -> None:
        state = self.state
        is_table = state.view == "pending"
        if is_table and time.monotonic() - state.marked < LOOK_S:
            state.message = "the marked request has only just appeared there; look at it first"
            return
        if every and is_table:
            found = self._connection.call("POST", "/api/bulk", {"approved": True, "ids": [row["id"] for row in state.rows]})
        else:
            found = self._connection.call("POST", f"/api/requests/{number}/{word}",
                                    {"always": True} if always else {})
        said = [f"{len(found['decided'])} decided"]
        said += [f"{row['id']} was {row['status']} before, by {row['decided_by']}" for row in found.get("before", [])]
        if found.get("rule"):
            where = f"in {found['project']}" if found.get("project") else "everywhere"
            said.append(f"rule {found['rule']}, {where}")
        state.message, state.view = "; ".join(said), "pending"
        self.reload()
        state.marked = 0.0  # the user's own key has moved the mark to the next request


#: The decision of each key, whether it also stores a rule, and whether it is about all requests.
_DECISIONS = {"a": ("approve", False, False), "aa": ("approve", False, True), "d": ("deny", False, False),
              "A": ("approve", True, False), "D": ("deny", True, False)}


def attend(connection: OperatorConnection) -> int:
    desk = WatchKeys(connection)
    desk.reload()
    if not (os.isatty(0) and os.isatty(1)):
        for row in desk.state.rows:
            print(line_of(row))
        return 0
    woken, wake = os.pipe()
    threading.Thread(target=_listen, args=(connection.path, wake), daemon=True).start()
    with alternate_screen():
        return _loop(desk, woken)


def _listen(path: str, wake: int) -> None:
    """Write a byte to the pipe *wake* for each event of the service, and close it when the service has ended."""
    from websockets.exceptions import WebSocketException  # of the extra `web`
    from websockets.sync.client import unix_connect

    try:
        with unix_connect(path, "ws://leeward/api/live", max_size=64 << 20) as events:
            for _ in events:
                os.write(wake, b".")
    except (OSError, WebSocketException):
        pass
    os.close(wake)


def _loop(desk: WatchKeys, woken: int) -> int:
    while True:
        _draw(desk.state)
        ready = select.select([0, woken], [], [], _DRAW_S)[0]
        try:
            if woken in ready:
                if not os.read(woken, 4096):
                    desk.state.message = "the service is gone"
                    _draw(desk.state)
                    time.sleep(_DRAW_S)
                    return 1
                desk.reload()
            if 0 in ready and not _keys(desk):
                return 0
        except ApprovalsAway as error:
            desk.state.message = str(error)
        except LeewardError as error:
            desk.state.message = str(error)
            desk.reload()


def _keys(desk: WatchKeys) -> bool:
    data = os.read(0, 64)
    if not data:
        return False
    if data in _ARROWS:
        return desk.press(_ARROWS[data])
    keys = [letter for letter in data.decode("latin-1") if letter != "\x1b"]
    return all(desk.press(key) for key in paired(keys, lambda: os.read(0, 1).decode("latin-1") if select.select(
        [0], [], [], _SECOND_S)[0] else ""))


def paired(keys: list[str], second: Callable[[], str]) -> list[str]:
    """*keys*, with two successive "a" combined to "aa". Behind a last "a", *second* waits a moment for the next."""
    found = list[str]()
    while keys:
        key = keys.pop(0)
        if key == "a":
            after = keys.pop(0) if keys else second()
            if after == "a":
                key = "aa"
            elif after:
                keys.insert(0, after)
        found.append(key)
    return found


def _draw(state: WatchState) -> None:
    width, height = shutil.get_terminal_size()
    draw(state.screen(height, width))
