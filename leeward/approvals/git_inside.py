"""
git on the sandbox's side: `origin` is a bare repository inside, and what was pushed there comes out as bundles.

Runs in:   the operator's program that decides; its commands run in the sandbox.
Trust:     none in what they print: it is the sandbox's.
"""

from __future__ import annotations

import re

from leeward.approvals.git_host import MOST_BUNDLE, GitFailed, remote_of
from leeward.approvals.subjects import branch
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest

#: Where `origin` is inside.
STAGING = "/tmp/.leeward/origin.git"

#: Branches that are looked at.
MOST_BRANCHES = 100

_ROW = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64}) refs/heads/(.{1,255})")

#: Seconds that a command of git's in the sandbox has.
_S = 60.0


def variables(project: str) -> dict[str, str]:
    """
    What makes `origin` of *project* the staging repository, in a sandbox's environment; nothing without `origin`.
    """
    addresses = [each for each in dict.fromkeys(remote_of(project)) if each]
    found = {"GIT_CONFIG_COUNT": str(len(addresses))} if addresses else {}
    for number, address in enumerate(addresses):
        found |= {f"GIT_CONFIG_KEY_{number}": f"url.{STAGING}.insteadOf", f"GIT_CONFIG_VALUE_{number}": address}
    return found


class Staging:
    """
    The staging repository of one sandbox.

    Args:
        box: it is over a project that has a repository.
        project: where that is inside.

    Attributes:
        before: the branches when it was made, with their commits.

    Raises:
        GitFailed: the sandbox has no git, or there is no repository.
    """

    def __init__(self, box: Sandbox, project: str = "/workspace") -> None:
        self._box = box
        done = box.run(["git", "clone", "--quiet", "--bare", "--shared", project, STAGING], timeout=_S)
        if done.exit_code:
            raise GitFailed(f"in the sandbox: {done.stderr_text[-300:]!r}")
        self.before = self.branches()

    def branches(self) -> dict[str, str]:
        """
        The branches that are there, with their commits. What isn't a branch that git would push is left out.
        """
        done = self._box.run(["git", "-C", STAGING, "for-each-ref", f"--count={MOST_BRANCHES}",
                              "--format=%(objectname) %(refname)", "refs/heads"], timeout=_S, output="256K")
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
        A branch with what was not there when the sandbox was opened.

        Raises:
            GitFailed: there is nothing new, or too much.
        """
        # The commits that both sides had; the host's own repository has them.
        known = [f"^{commit}" for commit in dict.fromkeys(self.before.values())]
        done = self._box.run(["git", "-C", STAGING, "bundle", "create", "--quiet", "-", f"refs/heads/{name}", *known],
                             timeout=_S, output=MOST_BUNDLE)
        if done.exit_code:
            raise GitFailed(f"in the sandbox: {done.stderr_text[-300:]!r}")
        return bytes(done.stdout)
