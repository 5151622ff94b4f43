"""
Makes requests of a sandbox's changes in its copy of a project, except for those that can't be requested.

Runs in:   the operator's program that decides.
Left out:  git's own files and the files of package managers: `.git` is covered by branches, `node_modules` by packages.
           Neither reaches the host this way, and the answer has the number of such changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from leeward.approvals.apply import Project
from leeward.approvals.asking import in_project
from leeward.approvals.files import MOST_CONTENT, change_order, file_request
from leeward.approvals.overlay import has_content, in_order
from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.requests import ApprovalRequest
from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy, RequestRejected

#: Folders, at any depth, whose changes aren't asked for.
LEFT_OUT = (".git", "node_modules")


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """
    What came of it.

    Attributes:
        requests: that were made, or were pending already.
        refused: what can't be asked for: path and reason.
        left_out: how many changes are of LEFT_OUT.
        more: how many there was no room for, since the sandbox has asked too much already.
    """

    requests: tuple[ApprovalRequest, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    left_out: int = 0
    more: int = 0


def is_left_out(path: str) -> bool:
    return any(part.casefold() in LEFT_OUT for part in path.split("/"))


def ask_for_changes(queue: ApprovalQueue, box: Sandbox, project: Project, *, reason: str = "",
                    asker: str = "") -> SyncOutcome:
    """
    A request for each file that *box* has changed. Carried out in the order of their ids, they fit onto each other.

    Raises:
        Stale: the host's folder was replaced by another one.
        SandboxOver, DaemonError: as for `Sandbox.diff`.
    """
    overlay = Overlay(box, "")
    found = in_order(overlay.diff())
    wanted = [change for change in found if not is_left_out(change.path)]
    requests, refused, more = list[ApprovalRequest](), list[tuple[str, str]](), 0
    for place, change in enumerate(wanted):
        try:
            requests.append(_ask(queue, overlay, box, project, change, reason, asker))
        except Busy:
            more = len(wanted) - place
            break
        except (BadRequest, RequestRejected, OSError) as error:
            refused.append((change.path, str(error)))
    return SyncOutcome(tuple(requests), tuple(refused), len(found) - len(wanted), more)


def _ask(queue: ApprovalQueue, overlay: Overlay, box: Sandbox, project: Project, change: FolderChange, reason: str,
         asker: str) -> ApprovalRequest:
    base, before = project.content(change.path)
    content = overlay.content(change.path, MOST_CONTENT) if has_content(change) else b""
    is_newer = project.changed_since(change.path, overlay.since)
    more = ["the host's own was changed since the sandbox was opened"] * is_newer
    new = file_request(change_order(change, base, content), "apply", before=before, sandbox=box.id, reason=reason,
                       asker=asker, description=f"{change.kind} {change.type}", more=more)
    return queue.submit(in_project(new, project))
