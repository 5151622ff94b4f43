"""Other spellings of a command: real programs run them, and a rule that denies matches them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.queue.patterns import MOST, spellings
from leeward.apps.approvals.queue.rules import RuleSet, decide_subject, parse_rule
from leeward.apps.approvals.queue.subjects import Invocation, invocation

LINES = [
    "git rev-parse --is-inside-work-tree", "git -C . rev-parse --is-inside-work-tree",
    "git -c a.b=c rev-parse --is-inside-work-tree", "git -c a.b=rev-list -C . rev-parse --is-inside-work-tree",
    "git --git-dir=.git rev-parse --is-inside-work-tree", "git --git-dir .git rev-parse --is-inside-work-tree",
    "git --work-tree . rev-parse --is-inside-work-tree", "git --namespace x rev-parse --is-inside-work-tree",
    "git --config-env a.b=HOME rev-parse --is-inside-work-tree", "git -P --no-pager rev-parse --is-inside-work-tree",
    "git --no-replace-objects --literal-pathspecs --no-optional-locks rev-parse --is-inside-work-tree",
    "/usr/bin/git rev-parse --is-inside-work-tree", "env git rev-parse --is-inside-work-tree",
    "env -i PATH=/usr/bin:/bin A=b git -C . rev-parse --is-inside-work-tree", "env -C . git rev-parse --is-inside-work-tree",
    "env -S 'git -C . rev-parse --is-inside-work-tree'", "env '-Sgit rev-parse --is-inside-work-tree'",
    "/usr/bin/env '--split-string=git rev-parse --is-inside-work-tree'",
    "nice -n 1 git rev-parse --is-inside-work-tree", "timeout 10 env git rev-parse --is-inside-work-tree",
    "nohup git rev-parse --is-inside-work-tree", "stdbuf -o L git rev-parse --is-inside-work-tree",
    "sh -c 'git -C . rev-parse --is-inside-work-tree'", "bash -ec 'env git rev-parse --is-inside-work-tree'",
    "xargs -a /dev/null git rev-parse --is-inside-work-tree",
    "find . -maxdepth 0 -exec git rev-parse --is-inside-work-tree ';'",
    "setarch x86_64 git rev-parse --is-inside-work-tree", "env -S '-i PATH=/usr/bin git rev-parse --is-inside-work-tree'",
    "su -s /bin/sh -c 'git rev-parse --is-inside-work-tree' root",
    "sh -c 'A=b git rev-parse --is-inside-work-tree'", "git -c alias.x=rev-parse x --is-inside-work-tree",
    "git -c 'alias.x=!git rev-parse' x --is-inside-work-tree", "git -c Alias.x=rev-parse x --is-inside-work-tree",
    "git -c extensions.x=. for-each-repo --config=extensions.x rev-parse --is-inside-work-tree",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize("line", LINES)
def test_c436_cannot_run_a_forbidden_command_by_another_spelling(line: str, project: Path) -> None:
    """Each of them runs the command, outside of any rule."""
    subject = invocation(line)
    assert subject.argv
    if shutil.which(subject.argv[0]) is None:
        pytest.skip(f"no {subject.argv[0]} here")
    ran = subprocess.run(subject.argv, cwd=project, capture_output=True, text=True, check=False,
                         stdin=subprocess.DEVNULL)
    assert (0, "true\n") == (ran.returncode, ran.stdout)  # control

    rules = RuleSet(forbidden=(parse_rule("exec(git rev-parse **)", "deny"),), allow=(parse_rule("exec(git **)", "allow"),))
    assert ("deny", "operator") == (decide_subject(rules, subject).answer, decide_subject(rules, subject).by)


@pytest.mark.parametrize("line", [
    "git -C push status", "git -c a=push status", "git log push", "echo git push", "gitpush", "grep -r 'git push'",
    "git --exec-path=push status", "git commit -m 'git push'", "git commit --message='git push'", "git log --grep 'git push'",
    "git grep 'git push'", "git -c alias.push=status p"])
def test_another_command_is_none_of_its_spellings(line: str) -> None:
    assert not parse_rule("exec(git push **)", "deny").matches(invocation(line))
    assert not parse_rule("exec(git push)", "deny").matches(invocation(line))


@pytest.mark.parametrize("line", ["git -C . push", "env git push", "/usr/bin/git push", "sh -c 'git push'",
                                  "npx -c 'git push'", "uv run git push", "parallel git push",
                                  "git submodule foreach 'git push'", "git rebase -x 'git push' main",
                                  "git rebase '--exec=git push' main", "git rebase '-xgit push' main",
                                  "git difftool -x 'git push'", "git difftool '--extcmd=git push'", "git grep '-Ogit push' x",
                                  "git fetch --upload-pack='git push' .", "git -c core.pager='git push' -p log",
                                  "git -c alias.p=push p", "git -c alias.p='!git push' p", "sh -c 'A=b git push'",
                                  "watchexec git push", "hyperfine '--prepare=git push' x", "tcsh -c 'git push'",
                                  "/lib64/ld-linux-x86-64.so.2 /usr/bin/git push"])
def test_a_rule_that_allows_sees_one_spelling(line: str) -> None:
    assert not parse_rule("exec(git push **)", "allow").matches(invocation(line))
    assert parse_rule("exec(git push **)", "deny").matches(invocation(line))


def test_a_command_with_too_many_spellings_is_denied() -> None:
    argv = ["env"] * 500 + [f"a{number} b" for number in range(500)]
    assert spellings(argv) is not None
    many = ["env", *(f"sh -c 'x{number} {number}'" for number in range(MOST))]
    assert spellings(many) is None
    # A request has fewer arguments, so the rule is asked itself.
    assert parse_rule("exec(git push **)", "deny").matches(Invocation(tuple(many)))


@given(st.lists(st.sampled_from(["git", "env", "sh", "-c", "-C", "git push", "push", "", "/a/git", "/", "git-push"]),
                min_size=1, max_size=12))
def test_the_command_itself_is_one_of_them(argv: list[str]) -> None:
    found = spellings(argv)
    assert found is not None
    assert not argv[0] or tuple(argv) in found
    assert all(each[0] for each in found)
