"""
Makes a request for each change that a sandbox has made in its copy of a project, as far as it can be requested.

Runs in:   the operator's program that decides.
Left out:  changes below `.git` and `node_modules`: requests for branches and packages take their place. The result has
           the number of such changes.
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

#: Names of folders, at any depth, whose changes aren't requested.
LEFT_OUT = (".git", "node_modules")


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """
    What `ask_for_changes` or `ask_for_pushes` has done.

    Attributes:
        requests: those for the changes; a change that was pending already has its old one.
        refused: the paths or branches that can't be requested, each with the reason.
        left_out: how many changes are in folders of LEFT_OUT.
        more: how many changes have no request, since the sandbox's requests take all the room it has.
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
    Make a request for each file that *box* has changed. The changes fit onto each other in the order of the ids.

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
