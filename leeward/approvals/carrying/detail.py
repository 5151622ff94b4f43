"""
The details of a request for the person who decides: a file before and after, its hunks, a command, a push, a setting.

Runs in:   the operator's program that decides.
Trust:     none in the texts, which come from a sandbox; the code that shows them escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from leeward.approvals.carrying.apply import Project
from leeward.approvals.carrying.files import FileOrder, file_request, unpacked, write_order
from leeward.approvals.carrying.hunks import file_hunks, take_hunks
from leeward.approvals.carrying.orders import CommandOrder, ConfigOrder, PushOrder, command_order, unpack_order
from leeward.approvals.git.git_host import GitFailed, diff_of, without_password
from leeward.approvals.queue.asking import command_request
from leeward.approvals.queue.requests import ApprovalRequest, NewRequest
from leeward.errors import BadRequest, Stale, told

#: Bytes of a file that are shown.
MOST_SHOWN = 1 << 20


def detail_of(request: ApprovalRequest, payload: bytes | None, project: Project | None) -> dict[str, Any]:
    """
    The details of a request, in the form of `ApprovalService.detail`.

    Args:
        request: of the queue.
        payload: the request's order; None if it has none.
        project: the folder of a request about a file; None if it can't be opened, and for other requests.
    """
    if payload is None:
        return {"kind": "none"}
    if request.category == "filesystem":
        return _file(unpacked(payload), project)
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


def _text(content: bytes) -> str | None:
    if len(content) > MOST_SHOWN or b"\0" in content:
        return None
    return content.decode("utf-8", "replace")


def _file(order: FileOrder, project: Project | None) -> dict[str, Any]:
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
    # The content of a file that was changed meanwhile isn't what this request would replace.
    return {"kind": "file", "path": order.path, "type": order.goal.type, "base_type": order.base.type,
            "before": None if stale else _text(before), "after": _text(order.content), "link": order.goal.link,
            "base_link": order.base.link, "mode": order.goal.mode, "base_mode": order.base.mode, "stale": stale,
            "hunks": hunks}


def command_in(request: ApprovalRequest, payload: bytes, profile: str) -> NewRequest:
    """
    A request for the same command in a sandbox of *profile*; "" for the sandbox that has requested it.

    Raises:
        BadRequest: there is no such profile; or it is "", and no sandbox has requested the command.
    """
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
    A request for some hunks of a change. With all of them it is the whole change.

    Args:
        request: about a file.
        payload: the request's order.
        project: the folder that the order is about.
        wanted: the hunks' places in `file_hunks`.

    Raises:
        BadRequest: the request isn't about a text file, or there are no such hunks.
        Stale: the file on the host was changed after the request.
    """
    order = unpacked(payload)
    state, before = project.content(order.path)
    if state != order.base:
        raise Stale(f"{order.path!r:.120} isn't on the host what it was when this was asked for", order.path)
    if order.goal.type != "file" or order.base.type not in ("none", "file"):
        raise BadRequest("only a change of a text file has hunks")
    content = take_hunks(before, file_hunks(before, order.content), wanted)
    part = write_order(order.path, order.base, content, order.goal.mode)
    said = f"{len(set(wanted))} hunks of request {request.id}"
    return file_request(part, "apply", before=before, description=said, reason=request.reason, sandbox=request.sandbox,
                        asker=request.asker, in_repository=project.in_repository(part.path))
