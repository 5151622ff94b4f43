"""
Pushes of a sandbox: its `origin` is a bare repository in the sandbox, whose branches come out as bundles and become
requests.

Trust:     none in the output of the commands in the sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from leeward.apps.approvals.carrying.orders import PushOrder, pack_order, push_order, unpack_order
from leeward.apps.approvals.git.git_host import (
    MOST_BUNDLE,
    MOST_FILES,
    GitFailed,
    GitIntake,
    GitStore,
    is_local,
    remote_of,
    without_password,
)
from leeward.apps.approvals.queue.approval_request import MOST_DESCRIPTION, ApprovalRequest, NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch
from leeward.apps.approvals.sync.changes import SyncOutcome
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy

#: The path of `origin` in the sandbox.
STAGING = "/tmp/.leeward/origin.git"

#: Branches that are read, at most.
MOST_BRANCHES = 100

_ROW = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64}) refs/heads/(.{1,255})")

#: Seconds that a command in the sandbox may take.
_S = 60.0

#: Characters of a request's description; `detail` has more of the diff.
_SHOWN = MOST_DESCRIPTION - 16384

#: Requests of one query.
_ROWS = 500


def variables(project: str) -> dict[str, str]:
    """The environment variables by which git in a sandbox takes STAGING for `origin` of *project*; {} without `origin`."""
    addresses = [each for each in dict.fromkeys(remote_of(project)) if each]
    found = {"GIT_CONFIG_COUNT": str(len(addresses))} if addresses else {}
    for number, address in enumerate(addresses):
        found |= {f"GIT_CONFIG_KEY_{number}": f"url.{STAGING}.insteadOf", f"GIT_CONFIG_VALUE_{number}": address}
    return found


class Staging:
    """
    The staging repository of one sandbox over a copy of a repository, in *project*; GitFailed if the sandbox has no
    git. `before` has the branches at the time of the clone, with their commits; given, if another service has made it.
    """

    def __init__(self, box: Sandbox, project: str = "/workspace", before: Mapping[str, str] | None = None) -> None:
        self._box = box
        if before is not None:
            self.before = dict(before)
            return
        done = box.run(["git", "clone", "--quiet", "--bare", "--shared", project, STAGING], timeout=_S)
        if done.exit_code:
            raise GitFailed(f"in the sandbox: {done.stderr_text[-300:]!r}")
        self.before = self.branches()

    def branches(self) -> dict[str, str]:
        """The branches of the staging repository now, with their commits. Invalid names are left out."""
        done = self._box.run(["git", "-C", STAGING, "for-each-ref", f"--count={MOST_BRANCHES}",
                              "--format=%(objectname) %(refname)", "refs/heads"], timeout=_S, output="256K", overflow="end")
        found = dict[str, str]()
        for line in done.stdout_text.split("\n")[:MOST_BRANCHES]:
            row = _ROW.fullmatch(line)
            try:
                if row is not None:
                    found[branch(row[2]).name] = row[1]
            except BadRequest:
                continue
        return found

    def bundle(self, name: str) -> bytes:
        """The new commits of the branch *name*; GitFailed if it has none, or more than MOST_BUNDLE bytes."""
        # The host's repository has the commits of the time when the sandbox was opened.
        known = [f"^{commit}" for commit in dict.fromkeys(self.before.values())]
        done = self._box.run(["git", "-C", STAGING, "bundle", "create", "--quiet", "-", f"refs/heads/{name}", *known],
                             timeout=_S, output=MOST_BUNDLE, overflow="end")
        if done.exit_code:
            raise GitFailed(f"in the sandbox: {done.stderr_text[-300:]!r}")
        return bytes(done.stdout)


def ask_for_pushes(queue: ApprovalQueue, store: GitStore, staging: Staging, intake: GitIntake, *, sandbox: str,
                   project: str, reason: str, asker: str) -> SyncOutcome:
    """Make a request for each branch that was pushed in *sandbox* since it was opened."""
    requests, refused, more = list[ApprovalRequest](), list[tuple[str, str]](), 0
    pushed = [name for name, commit in staging.branches().items() if staging.before.get(name) != commit]
    for place, name in enumerate(pushed):
        try:
            bundle = staging.bundle(name)
            with store.held(intake.path):
                requests.append(queue.submit(_request(bundle, intake, name, sandbox, project, reason, asker)))
        except Busy:
            more = len(pushed) - place
            break
        except BadRequest as error:
            refused.append((name, str(error)))
    return SyncOutcome(tuple(requests), tuple(refused), 0, more)


def _request(bundle: bytes, intake: GitIntake, name: str, sandbox: str, project: str, reason: str,
             asker: str) -> NewRequest:
    commit = intake.take_in(bundle, sandbox, name)
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
    return NewRequest(branch(name), "push", description, reason, metadata, sandbox, asker, pack_order(order), project)


def needed_commits(queue: ApprovalQueue) -> dict[str, set[str]]:
    """The commits of pushes that are pending or being carried out, by the folder of their repository."""
    found, after, requests = dict[str, set[str]](), 0, list[ApprovalRequest]()
    # In the order of a request's stages, so that one that changes its stage meanwhile isn't missed.
    while rows := queue.pending(_ROWS, after, "git"):
        after = rows[-1].id
        requests += rows
    requests += queue.due()
    requests += [request for request, _ in queue.interrupted()]
    for request in requests:
        payload = queue.payload(request.id) if request.category == "git" else None
        order = None if payload is None else unpack_order(payload)
        if isinstance(order, PushOrder):
            found.setdefault(order.repository, set()).add(order.commit)
    return found
