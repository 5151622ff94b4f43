"""
One view for every change: a file that is added, changed, deleted, renamed, a link, a folder, a picture, and each file of a
push. What a difference of lines doesn't show is said in words.

Trust:     none in the texts: the template escapes them. A picture is read by the browser alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from leeward.apps.approvals.carrying.detail import content_kind
from leeward.apps.approvals.carrying.orders import MOST_LINES as MOST_TEXT_LINES
from leeward.apps.approvals.carrying.orders import mode_text
from leeward.apps.approvals.git.pushed_changes import PushedChanges, PushedFile
from leeward.apps.approvals.queue.approval_request import ApprovalRequest
from leeward.apps.approvals.web.drawing import MOST_LINES, DiffHunk, hunks_of, patch_hunks
from leeward.errors import BadRequest

#: Rows of differences of one push, and of one file if all of it is shown.
MOST_PUSHED_ROWS, MOST_ROWS = 6000, 40_000

#: Hunks that have a box to tick each: a form has a bounded number of fields.
MOST_BOXES = 500

#: Files of a push that aren't text and whose content is looked at.
MOST_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One change, as it is drawn."""

    verb: str  # "add", "change", "delete", "rename" or "copy"
    path: str
    was: str = ""  # its path before, if that was another one; else ""
    facts: Sequence[str] = ()  # what the difference doesn't show
    hunks: Sequence[DiffHunk] = ()
    can_choose: bool = False  # whether hunks can be left out
    ends: Mapping[str, Any] | None = None  # the beginning and the end of a text without hunks, of `detail`
    pictures: Sequence[tuple[str, str]] = ()  # "before" and "after", each with its address

    @property
    def left_out(self) -> int:
        """Lines, or bytes of a text without hunks, that aren't drawn."""
        return sum(hunk.left_out for hunk in self.hunks) or (self.ends["left_out"] if self.ends else 0)


def verb_of(request: ApprovalRequest) -> str:
    """What a request does, in a word for lists."""
    return "connect to" if request.action == "connect" else request.action


def size_text(size: int) -> str:
    """Bytes for people: "512 bytes", "3.2 KiB"."""
    if size < 1024:
        return f"{size} byte{'' if size == 1 else 's'}"
    for unit in ("KiB", "MiB"):
        size_in = size / (1024 if unit == "KiB" else 1 << 20)
        if size_in < 1024:
            break
    return f"{size_in:.1f} {unit}"


def file_view(request: ApprovalRequest, detail: Mapping[str, Any], whole: bool) -> ChangeView:
    """The view of a file's request; *detail* is of `ApprovalService.detail`."""
    kind, base_kind, path, before = detail["type"], detail["base_type"], detail["path"], detail["before"]
    was = request.metadata.get("renamed_from") if kind == "file" and base_kind == "none" else None
    verb = "delete" if kind == "none" else "rename" if was else "add" if base_kind == "none" else "change"
    hunks = detail["hunks"]
    can_choose = 1 < len(hunks) <= MOST_BOXES
    if kind == "none" and before and before.count("\n") <= MOST_TEXT_LINES:
        lines = before.split("\n")
        hunks = [{"old_start": 1, "new_start": 1, "old": lines[:-1] if lines[-1] == "" else lines, "new": []}]
    drawn = hunks_of(before or "", detail["after"] or "", path, hunks, MOST_ROWS if whole else MOST_LINES) if hunks else []
    pictures = [(side, f"/queue/{request.id}/content/{side}")
                for side, name in (("before", "base_content"), ("after", "content")) if detail[name].startswith("image/")]
    return ChangeView(verb, path, str(was or ""), _facts(detail, verb), drawn, can_choose, detail["ends"], pictures)


_KINDS = {"none": "nothing", "file": "a file", "folder": "a folder", "link": "a link", "special": "something else"}


def _facts(detail: Mapping[str, Any], verb: str) -> list[str]:
    kind, base_kind, found = detail["type"], detail["base_type"], list[str]()
    if kind == "link":
        found.append(f"a link to {detail['link']}" + (f", before to {detail['base_link']}" if base_kind == "link" else ""))
    elif base_kind == "link" and kind == "none":
        found.append(f"a link to {detail['base_link']}")
    elif "folder" in (kind, base_kind if kind == "none" else ""):
        found.append("a folder")
    if "none" not in (kind, base_kind) and kind != base_kind:
        found.append(f"{_KINDS[base_kind]} becomes {_KINDS[kind]}")
    size, was = detail["size"], detail["base_size"] if base_kind == "file" else None
    if kind == "file":
        found.append("an empty file" if not size else size_text(size) + (
            f", before {size_text(was)}" if was is not None and was != size else ""))
    elif base_kind == "file" and was is not None:
        found.append(f"a file of {size_text(was)}" if was else "an empty file")
    contents = [_content(detail[name]) for name in ("base_content", "content") if detail[name]]
    found += list(dict.fromkeys(contents))
    if kind in ("file", "folder") and (kind != base_kind or detail["mode"] != detail["base_mode"]):
        found.append(mode_text(detail["mode"]) + (f", before {mode_text(detail['base_mode'])}" if kind == base_kind else ""))
        if kind == base_kind == "file" and not detail["hunks"] and not detail["ends"] and size == was:
            found.append("only the mode changes")
    return found


def _content(kind: str) -> str:
    return f"a picture ({kind.removeprefix('image/').upper()})" if kind.startswith("image/") else kind


def push_views(number: int, pushed: PushedChanges, commit: str) -> list[ChangeView]:
    """The views of the files of a push, or of one *commit* of it; *number* is of the request."""
    found, left, looked = list[ChangeView](), MOST_PUSHED_ROWS, 0
    for place, each in enumerate(pushed.files):
        hunks = patch_hunks(each.patch, each.path, max(0, min(MOST_LINES, left)))
        left -= sum(len(hunk.rows) for hunk in hunks)
        facts, pictures = _push_facts(each), list[tuple[str, str]]()
        if each.is_binary and looked < MOST_LOOKED_AT:
            looked += 1
            more, pictures = _blobs(number, pushed, place, commit)
            facts += more
        found.append(ChangeView(each.verb, each.path, each.was, facts, hunks, pictures=pictures))
    return found


def _push_facts(each: PushedFile) -> list[str]:
    kinds, found = {"120": "a link", "160": "a submodule"}, list[str]()
    kind, before = kinds.get(each.mode[:3], ""), kinds.get(each.base_mode[:3], "")
    if kind or before:
        found.append(kind if kind == before or not before else f"{before} becomes {kind or 'a file'}")
    elif each.mode != each.base_mode and each.verb != "delete":
        now = mode_text(int(each.mode, 8))
        found.append(now if each.verb == "add" else f"{now}, before {mode_text(int(each.base_mode, 8))}")
    if each.is_binary:
        found.append("not text")
    elif not each.patch and each.blob != each.base_blob and not each.is_cut:
        found.append("an empty file")
    elif not each.patch and each.blob == each.base_blob:
        found.append("the content stays")
    if each.is_cut:
        found.append("the difference is too long, and is cut here")
    return found


def _blobs(number: int, pushed: PushedChanges, place: int, commit: str) -> tuple[list[str], list[tuple[str, str]]]:
    """What is known of a file that isn't text: its sizes and kind, and the addresses of its pictures."""
    sizes, kinds, pictures = list[str](), list[str](), list[tuple[str, str]]()
    for side, blob in (("before", pushed.files[place].base_blob), ("after", pushed.files[place].blob)):
        try:
            if blob:
                sizes.append(f"{side} {size_text(pushed.size(blob))}")
                kind = content_kind(pushed.content(place, side))
                kinds.append(_content(kind))
                if kind.startswith("image/"):
                    query = urlencode({"commit": commit, "place": place})
                    pictures.append((side, f"/queue/{number}/content/{side}?{query}"))
        except (BadRequest, ValueError):
            kinds.append("too large to be looked at")
    return [", ".join(sizes), *(kind for kind in dict.fromkeys(kinds) if kind not in ("", "not text"))], pictures


def commit_rows(pushed: PushedChanges) -> list[dict[str, str]]:
    """The commits of a push for the template."""
    return [{"commit": each.commit, "short": each.commit[:10], "author": each.author, "subject": each.subject,
             "when": dt.datetime.fromtimestamp(min(each.when, 1e11)).astimezone().strftime("%Y-%m-%d %H:%M")}
            for each in pushed.commits]
