"""
Makes a request for each file that a live sandbox has changed in its copy of a project.

Runs in:   the operator's program, which has the sandbox and the queue.
Trust:     none in the sandbox's content, which is read once and compared with the hash that was listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from leeward.approvals.carrying.apply import Project
from leeward.approvals.carrying.files import MOST_CONTENT, change_order, file_request
from leeward.approvals.queue.queue import ApprovalQueue
from leeward.approvals.queue.requests import ApprovalRequest, NewRequest
from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox


def request_changes(queue: ApprovalQueue, box: Sandbox, project: Project, *, target: str = "", reason: str = "",
                    asker: str = "") -> list[ApprovalRequest]:
    """
    Make a request for each change of *box*, and stop at the first that can't be made. The changes fit onto each other
    in the order of the ids.

    Args:
        queue: takes the requests in.
        box: a live sandbox with an overlay.
        project: the folder of the host that the overlay is over.
        target: the path of the overlay in the sandbox, if there are several.
        reason: for the person who decides.
        asker: the name that the requester gives itself.

    Raises:
        Busy: the sandbox has too many pending requests; those made before stay.
        BadRequest, RequestRejected: a change can't be requested: a special file, a link that leads out of the project,
            a file that is too large or is being written. The requests made before stay.
        Stale: the host's folder was replaced by another one.
        SandboxOver, DaemonError: as for `Sandbox.diff`.
    """
    return [queue.submit(new) for new in _requests(Overlay(box, target), project, box.id, reason, asker)]


def _requests(overlay: Overlay, project: Project, sandbox: str, reason: str, asker: str) -> Iterator[NewRequest]:
    for change in in_order(overlay.diff()):
        base, before = project.content(change.path)
        content = overlay.content(change.path, MOST_CONTENT) if has_content(change) else b""
        changed = project.changed_since(change.path, overlay.since)
        more = ["the host's own was changed since the sandbox was opened"] if changed else []
        yield file_request(change_order(change, base, content), "apply", before=before, sandbox=sandbox, reason=reason,
                           asker=asker, description=f"{change.kind} {change.type}", more=more,
                           in_repository=project.in_repository(change.path))


def has_content(change: FolderChange) -> bool:
    return change.type == "file" and change.kind != "deleted"


def in_order(found: list[FolderChange]) -> list[FolderChange]:
    """
    *found* in an order in which each can be carried out: deletions first, the deepest paths first. New folders that
    aren't empty are left out: writing a file makes its folder.
    """
    deleted = [change for change in reversed(found) if change.kind == "deleted"]
    others = [change for change in found if change.kind != "deleted"]
    return deleted + [change for change in others if not (
        change.type == "folder" and change.kind == "created"
        and any(other.path.startswith(change.path + "/") for other in others))]
