"""
The details of a request for the person who decides: a file before and after, its hunks, a command, a push, a setting.

Trust:     none in the texts, which come from a sandbox; the code that shows them escapes them. Only a newline ends a
           line, so CRLF and the line separators of Unicode can't hide a change within what looks like one line.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from leeward.apps.approvals.carrying.apply import Project, check_base
from leeward.apps.approvals.carrying.asking import command_request
from leeward.apps.approvals.carrying.orders import (
    MOST_LINES,
    MOST_SHOWN,
    CommandOrder,
    ConfigOrder,
    FileOrder,
    PushOrder,
    command_order,
    file_request,
    unpack_order,
    unpacked,
    write_order,
)
from leeward.apps.approvals.git.git_host import GitFailed, diff_of, without_password
from leeward.apps.approvals.git.pushed_changes import PushedChanges, pushed_changes
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest
from leeward.errors import BadRequest, told

#: Bytes at the beginning and at the end of a text that has no hunks: those that are shown at first, and at most.
ENDS, ALL_ENDS = (32 << 10, 8 << 10), (3 << 20, 1 << 20)

#: What a file that isn't text begins with; pictures of these types are shown by browsers.
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF87a", "image/gif"),
          (b"GIF89a", "image/gif"), (b"%PDF-", "a PDF document"), (b"\x7fELF", "a program (ELF)"),
          (b"PK\x03\x04", "a ZIP archive"), (b"\x1f\x8b", "compressed (gzip)"), (b"SQLite format 3\0", "an SQLite database"))


def detail_of(request: ApprovalRequest, payload: bytes | None, project: Project | None, *,
              whole: bool) -> dict[str, Any]:
    """
    The details of a request with its order, in the form of `ApprovalService.detail`; *project* is that of a file, None
    if it can't be opened. With *whole* a large text has more of its content.
    """
    if payload is None:
        return {"kind": "none"}
    if request.category == "filesystem":
        return _file(unpacked(payload), project, ALL_ENDS if whole else ENDS)
    match unpack_order(payload):
        case CommandOrder() as order:
            return {"kind": "command", **asdict(order)}
        case ConfigOrder() as order:
            return {"kind": "config", **asdict(order)}
        case PushOrder() as order:
            base = request.metadata.get("base")
            found = {"kind": "push", "branch": order.branch, "commit": order.commit,
                     "remote": without_password(order.remote)}
            try:
                commits, diff = diff_of(order.repository, base if isinstance(base, str) else "", order.commit)
                return {**found, "commits": commits, "diff": diff[:MOST_SHOWN]}
            except GitFailed as error:
                return {**found, "commits": [], "diff": "", "fault": str(error)}


def pushed_of(request: ApprovalRequest, payload: bytes | None, commit: str) -> PushedChanges:
    """What a push adds, by its commits, and the files of all of it or of one *commit*."""
    order = None if payload is None else unpack_order(payload)
    if not isinstance(order, PushOrder):
        raise BadRequest(f"request {request.id} isn't a push")
    base = request.metadata.get("base")
    return pushed_changes(order.repository, base if isinstance(base, str) else "", order.commit, commit)


def content_of(order: FileOrder, project: Project | None, side: str) -> bytes:
    """The content of a file "before" the change or "after" it; BadRequest if the host has another than was shown."""
    if side == "after":
        return order.content
    if project is None:
        raise BadRequest("its project isn't open in this service")
    state, before = project.content(order.path)
    check_base(order, state)
    return before


def content_kind(content: bytes) -> str:
    """What a file that isn't text is: the media type of a picture that browsers show, or words; "" for text."""
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "image/webp"
    found = next((kind for start, kind in _MAGIC if content.startswith(start)), "")
    return found or ("not text" if b"\0" in content else "")


def _text(content: bytes) -> str | None:
    if len(content) > MOST_SHOWN or b"\0" in content:
        return None
    return content.decode("utf-8", "replace")


def _ends(content: bytes, most: tuple[int, int]) -> dict[str, Any]:
    """The first and the last lines of a text, and the number of bytes between them."""
    first, last = content[:most[0]], content[most[0]:][-most[1]:]
    left = len(content) - len(first) - len(last)
    if left:  # whole lines, unless one is longer than that
        first = first[:first.rfind(b"\n") + 1] or first
        last = last[last.find(b"\n") + 1:] or last
        left = len(content) - len(first) - len(last)
    return {"first": first.decode("utf-8", "replace"), "last": last.decode("utf-8", "replace"), "left_out": left}


def _file(order: FileOrder, project: Project | None, most: tuple[int, int]) -> dict[str, Any]:
    before, stale = b"", ""
    if project is None:
        stale = "its project isn't open in this service"
    else:
        try:
            state, before = project.content(order.path)
            if state != order.base:
                stale = "the file on the host was changed after this request"
        except (OSError, BadRequest) as error:
            stale = f"the file on the host can't be read: {told(error)}"
    hunks = list[dict[str, Any]]()
    if not stale and order.goal.type == "file" and order.base.type in ("none", "file"):
        try:
            hunks = [hunk.row() for hunk in file_hunks(before, order.content)]
        except BadRequest:
            pass  # too large or not text: a person decides about it as a whole
    is_text = order.goal.type == "file" and not content_kind(order.content)
    is_shown = is_text and not hunks and order.content and (stale or order.content != before)
    # The content of a file that was changed meanwhile isn't what this request would replace.
    return {"kind": "file", "path": order.path, "type": order.goal.type, "base_type": order.base.type,
            "before": None if stale else _text(before), "after": _text(order.content), "link": order.goal.link,
            "base_link": order.base.link, "mode": order.goal.mode, "base_mode": order.base.mode, "stale": stale,
            "hunks": hunks, "ends": _ends(order.content, most) if is_shown else None, "size": len(order.content),
            "base_size": None if stale else len(before),
            "content": content_kind(order.content), "base_content": "" if stale else content_kind(before)}


def command_in(request: ApprovalRequest, payload: bytes, profile: str) -> NewRequest:
    """A request for the same command in a sandbox of *profile*; "" for the sandbox that has requested it."""
    order = unpack_order(payload)
    if not isinstance(order, CommandOrder):
        raise BadRequest(f"request {request.id} isn't a command")
    if not profile and not request.sandbox:
        raise BadRequest("a command of no sandbox needs a profile")
    made = command_order(order.line or order.argv, cwd=order.cwd, timeout=order.timeout, profile=profile)
    new = command_request(made, reason=request.reason, sandbox=request.sandbox, asker=request.asker,
                          description=request.description, project=request.project)
    return replace(new, metadata={**new.metadata, "in_place_of": request.id})


def part_of(request: ApprovalRequest, payload: bytes, project: Project, wanted: Sequence[int]) -> NewRequest:
    """
    A request for some hunks of a change, by their places in `file_hunks`. With all of them it is the whole change.
    BadRequest if there are none, Stale if the file on the host was changed.
    """
    order = unpacked(payload)
    state, before = project.content(order.path)
    check_base(order, state)
    if order.goal.type != "file" or order.base.type not in ("none", "file"):
        raise BadRequest("only a change of a text file has hunks")
    content = take_hunks(before, file_hunks(before, order.content), wanted)
    part = write_order(order.path, order.base, content, order.goal.mode)
    said = f"{len(set(wanted))} hunks of request {request.id}"
    return file_request(part, request.action, before=before, description=said, reason=request.reason, sandbox=request.sandbox,
                        asker=request.asker, in_repository=project.in_repository(part.path))


#: Pairs of lines that difflib compares, at most: about two seconds. A hostile text can make it take hours.
MOST_PAIRS = 10_000_000


@dataclass(frozen=True, slots=True)
class FileHunk:
    """A run of lines that differs."""

    start: int  # the first line of the old file that is replaced, from 0; if it only adds, the line before which
    old: tuple[bytes, ...]  # the lines of the old file, with their newlines
    new: tuple[bytes, ...]  # the lines of the new file in their place
    new_start: int  # the number of the first of them in the new file, from 0

    def row(self) -> dict[str, Any]:
        """For JSON: lines as text, and numbers from 1."""
        return {"old_start": self.start + 1, "new_start": self.new_start + 1,
                "old": [line.decode("utf-8", "replace") for line in self.old],
                "new": [line.decode("utf-8", "replace") for line in self.new]}


def split_lines(content: bytes) -> list[bytes]:
    """The lines of *content* with their newlines."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def file_hunks(before: bytes, after: bytes) -> list[FileHunk]:
    """The hunks of a change, in the order of their lines; BadRequest for what is decided as a whole."""
    if max(len(before), len(after)) > MOST_SHOWN:
        raise BadRequest(f"a file above {MOST_SHOWN} bytes is decided as a whole")
    if b"\0" in before or b"\0" in after:
        raise BadRequest("a file that isn't text is decided as a whole")
    old, new = split_lines(before), split_lines(after)
    if max(len(old), len(new)) > MOST_LINES:
        raise BadRequest(f"a file above {MOST_LINES} lines is decided as a whole")
    matcher = _BoundedMatcher(old, new)
    return [FileHunk(a, tuple(old[a:b]), tuple(new[c:d]), c) for tag, a, b, c, d in matcher.get_opcodes()
            if tag != "equal"]


class _BoundedMatcher(difflib.SequenceMatcher[bytes]):
    """A matcher that gives up after MOST_PAIRS comparisons."""

    def __init__(self, old: list[bytes], new: list[bytes]) -> None:
        super().__init__(None, old, new, autojunk=True)
        self._left = MOST_PAIRS
        # The comparisons for each line of `old`: one, and one for each place of the same line in `new`.
        places: Mapping[bytes, Sequence[int]] = vars(self)["b2j"]
        self._costs = list(itertools.accumulate((1 + len(places.get(line, ())) for line in old), initial=0))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0,
                           bhi: int | None = None) -> difflib.Match:
        self._left -= self._costs[len(self._costs) - 1 if ahi is None else ahi] - self._costs[alo]
        if self._left < 0:
            raise BadRequest("a file with so many lines that are alike is decided as a whole")
        return super().find_longest_match(alo, ahi, blo, bhi)


def take_hunks(before: bytes, hunks: Sequence[FileHunk], wanted: Iterable[int]) -> bytes:
    """*before* with only those of *hunks* applied whose places are in *wanted*; BadRequest if there are none."""
    chosen = sorted(set(wanted))
    if not chosen or chosen[0] < 0 or chosen[-1] >= len(hunks):
        raise BadRequest(f"hunks are numbers from 0 to {len(hunks) - 1}, at least one of them")
    lines, at, found = split_lines(before), 0, list[bytes]()
    for place in chosen:
        hunk = hunks[place]
        found += [*lines[at:hunk.start], *hunk.new]
        at = hunk.start + len(hunk.old)
    return b"".join([*found, *lines[at:]])
