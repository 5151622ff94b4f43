"""
Makes a request for each branch that a sandbox has pushed to its `origin`.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

from leeward.approvals.bridge.boxes import AskingBox
from leeward.approvals.carrying.orders import PushOrder, pack_order, push_order, unpack_order
from leeward.approvals.git.git_host import MOST_FILES, GitFailed, GitIntake, is_local, without_password
from leeward.approvals.git.git_store import GitStore
from leeward.approvals.queue.queue import ApprovalQueue
from leeward.approvals.queue.requests import MOST_DESCRIPTION, ApprovalRequest, NewRequest
from leeward.approvals.queue.subjects import branch
from leeward.approvals.sync.changes import SyncOutcome
from leeward.errors import BadRequest, Busy

#: Characters of a request's description; `detail` has more of the diff.
_SHOWN = MOST_DESCRIPTION - 16384

#: Requests of one query.
_ROWS = 500


def ask_for_pushes(queue: ApprovalQueue, store: GitStore, box: AskingBox, *, reason: str = "",
                   asker: str = "") -> SyncOutcome:
    """
    Make a request for each branch that was pushed since the sandbox was opened.

    Args:
        queue: takes the requests in.
        store: has the repositories into which pushes are taken.
        box: the sandbox.
        reason: for the person who decides.
        asker: the name that the requester gives itself.

    Raises:
        BadRequest: the project has no `origin`, or there is no git in the sandbox or on the host.
        SandboxOver, DaemonError: as for `Sandbox.run`.
    """
    staging, intake = box.staging, box.intake
    if staging is None or intake is None:
        raise BadRequest(box.git_fault or "this project has no origin to push to")
    requests, refused, more = list[ApprovalRequest](), list[tuple[str, str]](), 0
    pushed = [name for name, commit in staging.branches().items() if staging.before.get(name) != commit]
    for place, name in enumerate(pushed):
        try:
            bundle = staging.bundle(name)
            with store.held(intake.path):
                requests.append(queue.submit(_request(bundle, intake, box, name, reason, asker)))
        except Busy:
            more = len(pushed) - place
            break
        except (BadRequest, GitFailed) as error:
            refused.append((name, str(error)))
    return SyncOutcome(tuple(requests), tuple(refused), 0, more)


def _request(bundle: bytes, intake: GitIntake, box: AskingBox, name: str, reason: str, asker: str) -> NewRequest:
    commit = intake.take_in(bundle, box.box.id, name)
    base = intake.base_of(name, commit)
    commits, diff, remarks = intake.about(base, commit)
    if is_local(intake.remote):
        remarks.insert(0, "the remote is a folder of this host: the hooks in it are run here")
    listed = "\n".join(line[:200] for line in commits)
    description = f"{listed}\n\n{diff}"
    if len(description) > _SHOWN:
        description = description[:_SHOWN]
        remarks.append("the diff is longer than what is shown here")
    metadata = {"remarks": [remark[:300] for remark in remarks[:MOST_FILES // 2]], "commit": commit, "base": base,
                "remote": without_password(intake.remote)[:500], "commits": len(commits)}
    order = push_order(intake.path, intake.remote, name, commit)
    return NewRequest(branch(name), "push", description, reason, metadata, box.box.id, asker, pack_order(order),
                      box.project.path)


def needed_commits(queue: ApprovalQueue) -> dict[str, set[str]]:
    """The commits of pushes that are pending or being carried out, by the folder of their repository."""
    found, after = dict[str, set[str]](), 0

    def note(request: ApprovalRequest) -> None:
        payload = queue.payload(request.id) if request.category == "git" else None
        order = None if payload is None else unpack_order(payload)
        if isinstance(order, PushOrder):
            found.setdefault(order.repository, set()).add(order.commit)

    # In the order of a request's stages, so that one that changes its stage meanwhile isn't missed.
    while rows := queue.pending(_ROWS, after, "git"):
        after = rows[-1].id
        for request in rows:
            note(request)
    for request in queue.due():
        note(request)
    for request, _ in queue.interrupted():
        note(request)
    return found
