"""What is kept of what sandboxes have pushed."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kit.waiting import poll_until
from leeward.apps.approvals.bridge.pushes import needed_commits
from leeward.apps.approvals.carrying.orders import pack_order, push_order
from leeward.apps.approvals.git import git_host
from leeward.apps.approvals.git.git_host import GitFailed, GitIntake, GitStore, git
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch, endpoint
from leeward.errors import Busy


class Pushed:
    """A project, and branches of random content that sandboxes push."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, str(folder / "project")
        self.git("init", "-q", "-b", "main", self.project)
        self.first = self.commit("first", b"x")
        self.intake = GitIntake(str(folder / "state"), self.project)
        self.needed, self.live = dict[str, set[str]](), set[str]()
        self.store = GitStore(str(folder / "state"), lambda: self.needed, lambda: self.live)

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        within = [] if "init" == words[0] else ["-C", self.project]
        done = subprocess.run(["git", *who, *within, *words], check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    def commit(self, name: str, content: bytes) -> str:
        Path(self.project, name).write_bytes(content)
        self.git("add", name)
        self.git("commit", "-qm", name)
        return self.git("rev-parse", "HEAD")

    def push(self, sandbox: str, name: str, size: int = 1 << 16) -> str:
        """The commit that *sandbox* has pushed as *name*; the project itself doesn't get it."""
        self.git("checkout", "-qb", name, self.first)
        self.commit(name, os.urandom(size))
        bundle = self.folder / "bundle"
        self.git("bundle", "create", "-q", str(bundle), f"refs/heads/{name}", f"^{self.first}")
        self.git("checkout", "-q", "main")
        self.git("branch", "-qD", name)
        self.git("reflog", "expire", "--expire=now", "--all")
        self.git("gc", "-q", "--prune=now")
        with self.store.held(self.intake.path):
            return self.intake.take_in(bundle.read_bytes(), sandbox, name)

    def has(self, commit: str) -> bool:
        try:
            git("cat-file", "-e", f"{commit}^{{commit}}", folder=self.intake.path)
        except GitFailed:
            return False
        return True


@pytest.fixture
def pushed(tmp_path: Path) -> Pushed:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    return Pushed(tmp_path)


def test_unneeded_commits_are_pruned_and_the_others_stay(pushed: Pushed) -> None:
    asked, old, open_one = (pushed.push(*of) for of in (("gone", "asked"), ("gone", "old"), ("open", "work")))
    before = pushed.store.size()
    pushed.needed, pushed.live = {pushed.intake.path: {asked}}, {"open"}
    pushed.store.prune()

    assert [True, False, True] == list(map(pushed.has, (asked, old, open_one)))
    assert before - pushed.store.size() > 1 << 15

    # The sandbox ends, and the request is decided.
    pushed.live = set()
    pushed.store.prune()
    assert [True, False] == list(map(pushed.has, (asked, open_one)))
    pushed.needed = {}
    pushed.store.prune()
    assert not os.path.exists(pushed.intake.path)
    assert 0 == pushed.store.size()

    # A sandbox that is open still pushes as ever.
    assert pushed.has(pushed.push("open", "again"))


def test_a_request_keeps_its_commit_though_its_branch_has_gone_on(pushed: Pushed) -> None:
    first, second = pushed.push("box", "work"), pushed.push("box", "work")
    pushed.needed, pushed.live = {pushed.intake.path: {first}}, {"box"}
    pushed.push("other", "x")
    pushed.store.prune()

    assert [True, True] == list(map(pushed.has, (first, second)))


def test_a_missing_commit_does_not_prevent_pruning(pushed: Pushed) -> None:
    old = pushed.push("gone", "old")
    pushed.needed = {pushed.intake.path: {"1" * 40}}
    pushed.store.prune()

    assert not pushed.has(old)


def test_a_commit_that_is_needed_stays_where_its_name_cannot_be_written(
        pushed: Pushed, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pushed.push("gone", "asked")
    pushed.needed = {pushed.intake.path: {asked}}

    def full(*argv: str, folder: str) -> bytes:
        if "update-ref" == argv[0] and "-d" != argv[1]:
            raise GitFailed("git update-ref: no space left on device")
        return git(*argv, folder=folder)

    monkeypatch.setattr(git_host, "git", full)
    pushed.store.prune()
    assert pushed.has(asked)

    monkeypatch.undo()
    pushed.store.prune()
    assert pushed.has(asked)


def test_a_removal_that_was_cut_off_is_in_the_way_of_no_push(
        pushed: Pushed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is killed while it removes a repository, of which the objects are still there then."""
    pushed.push("gone", "old")

    def killed(path: str, ignore_errors: bool = False) -> None:
        os.unlink(os.path.join(path, "HEAD"))
        raise OSError("killed")

    monkeypatch.setattr(shutil, "rmtree", killed)
    pushed.store.prune()
    monkeypatch.undo()
    assert pushed.has(pushed.push("open", "new"))

    pushed.live = {"open"}
    pushed.store.prune()
    assert [os.path.basename(pushed.intake.path)] == os.listdir(pushed.folder / "state" / "git")


def test_an_open_sandbox_has_no_repository_before_it_pushes(pushed: Pushed) -> None:
    """What is there could be removed while it is being made: a sandbox that is being opened isn't live yet."""
    pushed.push("gone", "work")
    pushed.store.prune()
    GitIntake(str(pushed.folder / "state"), pushed.project)

    assert not os.path.exists(pushed.intake.path)


def test_c376_cannot_fill_the_disk_by_pushes(pushed: Pushed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes, one after the other, each within its own bound. The control: without the common one all is taken."""
    for number in range(3):
        pushed.push(f"box{number}", f"b{number}")
    assert pushed.store.size() > 3 << 16

    monkeypatch.setattr(git_host, "MOST_STORED", 3 << 16)
    with pytest.raises(Busy, match="decide what waits"):
        pushed.push("box4", "b4")
    pushed.store.prune()  # they are over, and nobody needs it
    assert pushed.has(pushed.push("box5", "b5"))


def test_no_commit_is_pruned_during_a_push(pushed: Pushed) -> None:
    commit = pushed.push("gone", "work")
    with pushed.store.held(pushed.intake.path):
        pushed.store.prune()
        assert pushed.has(commit)
    pushed.store.prune()
    assert not os.path.exists(pushed.intake.path)


def test_a_push_waits_until_the_others_have_gone(pushed: Pushed) -> None:
    """It comes while its repository is being removed."""
    begun, go_on, in_turn = threading.Event(), threading.Event(), list[str]()

    def needed() -> dict[str, set[str]]:
        begun.set()
        go_on.wait(10)
        in_turn.append("pruned")
        return {}

    def take_in() -> None:
        with pushed.store.held(pushed.intake.path):
            in_turn.append("taken in")

    pushed.push("gone", "work")
    pushed.store._needed = needed
    pruning, taking = threading.Thread(target=pushed.store.prune), threading.Thread(target=take_in)
    pruning.start()
    begun.wait(10)
    taking.start()
    go_on.set()
    pruning.join(10)
    taking.join(10)

    assert ["pruned", "taken in"] == in_turn


def test_old_partial_files_are_pruned(pushed: Pushed) -> None:
    pushed.push("open", "work")
    pushed.live = {"open"}
    left = [Path(pushed.intake.path, name) for name in ("x.bundle", "objects/pack/tmp_pack_x", "y.bundle")]
    for path in left:
        path.write_bytes(b"half")
    for path in left[:2]:
        os.utime(path, (time.time() - 7200,) * 2)
    pushed.store.prune()

    assert [False, False, True] == [path.exists() for path in left]


def test_the_store_prunes_when_it_starts(pushed: Pushed) -> None:
    pushed.push("gone", "work")
    pushed.store.start()
    poll_until(lambda: not os.path.exists(pushed.intake.path), "the thread that prunes")
    pushed.store.close()


def test_pending_requests_need_their_commits(tmp_path: Path) -> None:
    queue = ApprovalQueue(str(tmp_path))

    def ask(number: int) -> int:
        order = push_order("/r.git", "https://example.org/x", f"b{number}", str(number) * 40)
        return queue.submit(NewRequest(branch(f"b{number}"), "push", sandbox="box", payload=pack_order(order))).id

    asked = [ask(number) for number in range(1, 6)]
    queue.submit(NewRequest(endpoint("example.org", 1), "connect"))
    queue.decide([asked[0]], False, "cli")
    queue.decide(asked[1:4], True, "cli")
    queue.begin(asked[2])
    queue.begin(asked[3])
    queue.finish(asked[3])

    assert {"/r.git": {str(number) * 40 for number in (2, 3, 5)}} == needed_commits(queue)
    queue.close()
