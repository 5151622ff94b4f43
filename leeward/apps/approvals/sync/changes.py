"""
Makes a request for each change that a sandbox has made in its copy of a project, as far as it can be requested.

Trust:     none in the sandbox's content, which is read once and compared with the hash that was listed.
Left out:  changes below `.git` and `node_modules`: requests for branches and packages take their place. The result has
           the number of such changes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from leeward.apps.approvals.carrying.apply import Project, in_project
from leeward.apps.approvals.carrying.orders import MOST_CONTENT, change_order, file_request
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import storable
from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy, RequestRejected, told

#: Names of folders, at any depth, whose changes aren't requested.
LEFT_OUT = (".git", "node_modules")

#: Changes that are taken into the queue in one transaction, and seconds after which a call returns with the rest undone.
_AT_ONCE, _CALL_S = 100, 45.0


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """What `ask_for_changes` or `ask_for_pushes` has done."""

    requests: tuple[ApprovalRequest, ...] = ()  # a change that was pending already has its old one
    refused: tuple[tuple[str, str], ...] = ()  # the paths or branches that can't be requested, each with the reason
    left_out: int = 0  # how many changes are in folders of LEFT_OUT
    more: int = 0  # how many changes have no request yet, for lack of room or of time
    again: bool = False  # whether the call's time was over


@dataclass(slots=True)
class CollectedChanges:
    """The changes of a sandbox that have been asked for, whatever was decided, so that each is asked for once."""

    asked: dict[str, FolderChange] = field(default_factory=dict)  # the changes by their paths
    more: int = 0  # how many changes wait for room
    left: int = 0  # how many changes have no request and are in the sandbox alone, with those that can't be requested


def is_left_out(path: str) -> bool:
    return any(part.casefold() in LEFT_OUT for part in path.split("/"))


def request_changes(queue: ApprovalQueue, box: Sandbox, project: Project, *, target: str = "", reason: str = "",
                    asker: str = "") -> list[ApprovalRequest]:
    """
    Make a request for each change of *box*, and stop at the first that can't be made; those made before stay. The
    changes fit onto each other in the order of the ids.

    Args:
        queue: takes the requests in.
        box: a live sandbox with an overlay.
        project: the folder of the host that the overlay is over.
        target: the path of the overlay in the sandbox, if there are several.
        reason: for the person who decides.
        asker: the name that the requester gives itself.

    Raises:
        Busy: the sandbox has too many pending requests.
        BadRequest, RequestRejected: a change can't be requested: a special file, a link that leads out of the project,
            a file that is too large or is being written.
        Stale: the host's folder was replaced by another one.
    """
    overlay = Overlay(box, target)
    moved = dict[str, str]()
    return [queue.submit(_request(overlay, box, project, change, reason, asker, moved))
            for change in _in_order(overlay.diff())]


def ask_for_changes(queue: ApprovalQueue, box: Sandbox, project: Project, *, reason: str, asker: str) -> SyncOutcome:
    """Make a request for each file that *box* has changed; errors are those of `Sandbox.diff`."""
    overlay = Overlay(box, "")
    found = _in_order(overlay.diff())
    wanted = [change for change in found if not is_left_out(change.path)]
    requests, refused, more, moved = list[ApprovalRequest](), list[tuple[str, str]](), 0, dict[str, str]()
    for place, change in enumerate(wanted):
        try:
            requests.append(queue.submit(in_project(_request(overlay, box, project, change, reason, asker, moved), project)))
        except Busy:
            more = len(wanted) - place
            break
        except (BadRequest, RequestRejected, OSError) as error:
            refused.append((change.path, told(error)))
    return SyncOutcome(tuple(requests), tuple(refused), len(found) - len(wanted), more)


def collect_changes(queue: ApprovalQueue, box: Sandbox, project: Project, done: CollectedChanges, *, reason: str = "",
                    asker: str = "") -> SyncOutcome:
    """
    As `ask_for_changes`, for the operator, when a sandbox's work is over: for as many changes as the queue has room for
    (`ApprovalQueue.collect`), except those in *done*, to which it adds what it has asked for.
    """
    until, overlay = time.monotonic() + _CALL_S, Overlay(box, "")
    found = _in_order(overlay.diff())
    kept = [change for change in found if not is_left_out(change.path)]
    wanted = [change for change in kept if done.asked.get(change.path) != change]
    requests, refused, place, is_full = list[ApprovalRequest](), list[tuple[FolderChange, str]](), 0, False
    moved = dict[str, str]()
    while place < len(wanted) and not is_full and time.monotonic() < until:
        news = list[tuple[int, NewRequest]]()
        for number, change in enumerate(wanted[place:place + _AT_ONCE], place):
            try:
                news.append((number, in_project(_request(overlay, box, project, change, reason, asker, moved), project)))
            except (BadRequest, RequestRejected, OSError) as error:
                refused.append((change, told(error)))
        made = queue.collect([new for _, new in news])
        requests += made
        done.asked |= {wanted[number].path: wanted[number] for number, _ in news[:len(made)]}
        is_full = len(made) < len(news)
        place = news[len(made)][0] if is_full else place + _AT_ONCE
    more = max(0, len(wanted) - place)
    done.more, done.left = more, more + sum(change.type != "special" for change, _ in refused)
    return SyncOutcome(tuple(requests), tuple((change.path, why) for change, why in refused), len(found) - len(kept), more,
                       bool(more) and not is_full)


def _request(overlay: Overlay, box: Sandbox, project: Project, change: FolderChange, reason: str, asker: str,
             moved: dict[str, str]) -> NewRequest:
    """
    The request for a change. *moved* has the hashes of files that were deleted, with their paths: a new file with the
    content of one was renamed.
    """
    base, before = project.content(change.path)
    has_content = change.type == "file" and change.kind != "deleted"
    content = overlay.content(change.path, MOST_CONTENT) if has_content else b""
    is_newer = project.changed_since(change.path, overlay.since)
    if change.kind == "deleted" and before:
        moved[base.sha256] = change.path
    was = moved.get(change.sha256 or "", "") if change.kind == "created" else ""
    order = change_order(change, base, content)
    new = file_request(order, "rename" * bool(was), before=before, sandbox=box.id, reason=reason,
                       asker=asker, description=f"{change.kind} {change.type}",
                       more=["the host's own was changed since the sandbox was opened"] * is_newer,
                       in_repository=project.in_repository(change.path))
    return replace(new, metadata={**new.metadata, "renamed_from": storable(was)}) if was else new


def _in_order(found: list[FolderChange]) -> list[FolderChange]:
    """
    *found* in an order in which each can be carried out: deletions first, the deepest paths first. New folders that
    aren't empty are left out: writing a file makes its folder.
    """
    deleted = [change for change in reversed(found) if change.kind == "deleted"]
    others = [change for change in found if change.kind != "deleted"]
    return deleted + [change for change in others if not (
        change.type == "folder" and change.kind == "created"
        and any(other.path.startswith(change.path + "/") for other in others))]
