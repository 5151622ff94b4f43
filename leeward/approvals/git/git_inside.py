"""
git on the sandbox's side: `origin` is a bare repository in the sandbox, and its branches come out as bundles.

Runs in:   the operator's program that decides; its commands run in the sandbox.
Trust:     none in the commands' output, which the sandbox chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from leeward.approvals.git.git_host import MOST_BUNDLE, GitFailed, remote_of
from leeward.approvals.queue.subjects import branch
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest

#: The path of `origin` in the sandbox.
STAGING = "/tmp/.leeward/origin.git"

#: Branches that are read, at most.
MOST_BRANCHES = 100

_ROW = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64}) refs/heads/(.{1,255})")

#: Seconds that a command in the sandbox may take.
_S = 60.0


def variables(project: str) -> dict[str, str]:
    """The environment variables by which git in a sandbox takes STAGING for `origin` of *project*; {} without `origin`."""
    addresses = [each for each in dict.fromkeys(remote_of(project)) if each]
    found = {"GIT_CONFIG_COUNT": str(len(addresses))} if addresses else {}
    for number, address in enumerate(addresses):
        found |= {f"GIT_CONFIG_KEY_{number}": f"url.{STAGING}.insteadOf", f"GIT_CONFIG_VALUE_{number}": address}
    return found


class Staging:
    """
    The staging repository of one sandbox.

    Args:
        box: a sandbox over a copy of a repository.
        project: the path of the copy in the sandbox.
        before: of a staging repository that another service has made; None to make it.

    Attributes:
        before: the branches at the time of the clone, with their commits.

    Raises:
        GitFailed: the sandbox has no git, or *project* is no repository.
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
        """
        A bundle of the branch *name*, without the commits that the project had when the sandbox was opened.

        Raises:
            GitFailed: the branch has no new commit, or the bundle has more than MOST_BUNDLE bytes.
        """
        # The host's repository has these commits already.
        known = [f"^{commit}" for commit in dict.fromkeys(self.before.values())]
        done = self._box.run(["git", "-C", STAGING, "bundle", "create", "--quiet", "-", f"refs/heads/{name}", *known],
                             timeout=_S, output=MOST_BUNDLE, overflow="end")
        if done.exit_code:
            raise GitFailed(f"in the sandbox: {done.stderr_text[-300:]!r}")
        return bytes(done.stdout)
