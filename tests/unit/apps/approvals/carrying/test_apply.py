"""Applying what was approved: on the real file system, while somebody changes things, and with ends in between."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leeward.apps.approvals.carrying.apply import Project, carry_out, recover
from leeward.apps.approvals.carrying.orders import (
    NOTHING,
    FileOrder,
    FileState,
    change_order,
    delete_order,
    edit_order,
    file_request,
    write_order,
)
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import invocation, project_path
from leeward.client.changes import FolderChange
from leeward.errors import BadRequest, Stale


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "src").mkdir(parents=True)
    (made / "src" / "a.py").write_bytes(b"one\n")
    (made / "link").symlink_to("src")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.py").write_bytes(b"one\n")
    return made


@pytest.fixture
def project(folder: Path) -> Iterator[Project]:
    opened = Project(str(folder))
    yield opened
    opened.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ApprovalQueue]:
    opened = ApprovalQueue(str(tmp_path / "approvals"))
    yield opened
    opened.close()


def asked(queue: ApprovalQueue, order: FileOrder) -> ApprovalRequest:
    return queue.submit(file_request(order, sandbox="one"))


def applied(queue: ApprovalQueue, project: Project, order: FileOrder,
            meanwhile: Callable[[], object] = lambda: None) -> ApprovalRequest:
    number = asked(queue, order).id
    queue.decide([number], True, "cli")
    meanwhile()
    assert carry_out(queue, project, number)
    assert not carry_out(queue, project, number)
    found = queue.get(number)
    assert found is not None
    return found


def tree(folder: Path) -> dict[str, object]:
    """Everything in *folder*, with times and inodes."""
    return {str(path.relative_to(folder)): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_ino,
                                            path.lstat().st_ctime_ns,
                                            path.read_bytes() if path.is_file() and not path.is_symlink() else None)
            for path in sorted(folder.rglob("*"))}


def test_before_approval_the_host_is_untouched(folder: Path, project: Project, queue: ApprovalQueue) -> None:
    before = tree(folder)
    number = asked(queue, write_order("src/a.py", project.state("src/a.py"), b"two\n")).id
    assert not carry_out(queue, project, number)
    denied = asked(queue, delete_order("link", project.state("link"))).id
    queue.decide([denied], False, "cli")
    assert not carry_out(queue, project, denied)

    assert before == tree(folder)


def test_an_approved_order_is_applied(folder: Path, project: Project, queue: ApprovalQueue) -> None:
    (folder / "src" / "a.py").chmod(0o755)
    state, content = project.content("src/a.py")
    assert "applied" == applied(queue, project, edit_order("src/a.py", state, content, b"one", b"two")).stage
    assert (b"two\n", 0o755) == ((folder / "src/a.py").read_bytes(), (folder / "src/a.py").stat().st_mode & 0o777)

    applied(queue, project, write_order("new/deep/b", NOTHING, b"b"))
    assert b"b" == (folder / "new/deep/b").read_bytes()
    applied(queue, project, delete_order("link", project.state("link")))
    assert not (folder / "link").is_symlink()
    assert (folder / "src").is_dir()
    link = FolderChange("src/l", "created", "link", link="a.py")
    applied(queue, project, change_order(link, NOTHING))
    assert "a.py" == os.readlink(folder / "src/l")
    applied(queue, project, change_order(FolderChange("f", "created", "folder", 0o750), NOTHING))
    assert 0o750 == (folder / "f").stat().st_mode & 0o777
    applied(queue, project, delete_order("f", project.state("f")))
    assert not (folder / "f").exists()
    applied(queue, project, change_order(FolderChange("src/a.py", "modified", "link", link="l2"),
                                         project.state("src/a.py")))
    assert "l2" == os.readlink(folder / "src/a.py")
    assert not list(folder.rglob(".leeward-*"))
    assert {"applied"} == {each.stage for each in queue.recent()}


Change = Callable[[Path], object]
MEANWHILE: dict[str, Change] = {
    "other content": lambda folder: (folder / "src/a.py").write_bytes(b"mine\n"),
    "other mode": lambda folder: (folder / "src/a.py").chmod(0o600),
    "gone": lambda folder: (folder / "src/a.py").unlink(),
    "a folder": lambda folder: ((folder / "src/a.py").unlink(), (folder / "src/a.py").mkdir()),
    "a link": lambda folder: ((folder / "src/a.py").unlink(), (folder / "src/a.py").symlink_to("../../outside/a.py")),
    "the folder is a link": lambda folder: (shutil.rmtree(folder / "src"), (folder / "src").symlink_to("../outside")),
    "the folder is gone": lambda folder: shutil.rmtree(folder / "src"),
    "a pipe": lambda folder: ((folder / "src/a.py").unlink(), os.mkfifo(folder / "src/a.py")),
}


@pytest.mark.parametrize("change", MEANWHILE.values(), ids=MEANWHILE)
@pytest.mark.parametrize("step", ["", "write", "place"])
@pytest.mark.parametrize("what", ["write", "delete"])
def test_c299_cannot_have_something_else_written_over(folder: Path, queue: ApprovalQueue, change: Change, step: str,
                                                      what: str) -> None:
    """
    Whoever changes the host before the approval is carried out, or while it is: what he put there stays, nothing
    outside is touched, and the request is denied as stale.
    """
    done: list[str] = []

    def fault(at: str) -> None:
        if at == {"place": "remove"}.get(step, step) * ("delete" == what) or (at == step and "write" == what):
            done.append(at)
            change(folder)

    project = Project(str(folder), fault)
    state = project.state("src/a.py")
    order = write_order("src/a.py", state, b"two\n") if "write" == what else delete_order("src/a.py", state)
    early = "" == step or ("delete" == what and "write" == step)
    found = applied(queue, project, order, lambda: change(folder) if early else None)
    after = tree(folder)

    outside = folder.parent / "outside" / "a.py"
    assert b"one\n" == outside.read_bytes()
    assert ("denied", "stale", "failed") == (found.status, found.decided_by, found.stage), found
    assert not list(folder.rglob(".leeward-*"))
    fresh = folder.parent / "fresh"
    (fresh / "src").mkdir(parents=True)
    (fresh / "src" / "a.py").write_bytes(b"one\n")
    (fresh / "link").symlink_to("src")
    change(fresh)
    assert set(tree(fresh)) == set(after)
    assert done or early
    project.close()


@pytest.mark.parametrize(("path", "expected"), [
    ("vendor/x/config", True), ("vendor/x/hooks/pre-commit", True), ("half/refs/heads/x", True), ("half/y", False),
    ("vendor/config", False), ("deep/er/new", False), ("refs/x", False),
])
def test_a_path_lies_in_a_repository_by_what_is_there(folder: Path, project: Project, path: str, expected: bool) -> None:
    for name in ("objects", "refs"):
        (folder / "vendor/x" / name).mkdir(parents=True)
    (folder / "half").mkdir()
    for each in ("vendor/x", "half"):
        (folder / each / "HEAD").touch()
    assert expected == project.in_repository(path)


def test_a_new_file_replaces_no_other(folder: Path, queue: ApprovalQueue) -> None:
    """Also if somebody makes it between the last look and the rename."""
    project = Project(str(folder))
    order = write_order("new", NOTHING, b"ours")
    compare, looks = project._compare, []

    def late(order: FileOrder) -> None:
        compare(order)
        looks.append(1)
        if 2 == len(looks):
            (folder / "new").write_bytes(b"theirs")

    project._compare = late  # type: ignore[method-assign]
    assert "stale" == applied(queue, project, order).decided_by
    assert b"theirs" == (folder / "new").read_bytes()
    project.close()


def test_c298_cannot_change_an_order_after_it_was_shown(folder: Path, project: Project, queue: ApprovalQueue) -> None:
    """
    A sandbox that asks again for the same file makes another request; what was shown under the first id is denied, and
    isn't applied by an approval that comes late. The content is the request's own, wherever it was read.
    """
    state = project.state("src/a.py")
    shown = asked(queue, write_order("src/a.py", state, b"good\n"))
    swapped = asked(queue, write_order(project.resolve("link/../src/./a.py").path, state, b"evil\n"))
    late = queue.decide([shown.id], True, "cli")

    assert ((), "superseded") == (late.decided, late.before[0].status)
    assert not carry_out(queue, project, shown.id)
    assert not carry_out(queue, project, swapped.id)
    assert b"one\n" == (folder / "src/a.py").read_bytes()
    # The control: the one that is approved by its own id is applied, once, whatever was asked after that.
    queue.decide([swapped.id], True, "cli")
    asked(queue, write_order("src/a.py", state, b"worse\n"))
    assert carry_out(queue, project, swapped.id)
    assert b"evil\n" == (folder / "src/a.py").read_bytes()


def test_an_order_for_another_file_than_the_one_shown_isnt_carried_out(folder: Path, project: Project,
                                                                       queue: ApprovalQueue) -> None:
    order = write_order("src/a.py", project.state("src/a.py"), b"two\n")
    number = queue.submit(NewRequest(project_path("README"), "write", payload=order.packed())).id
    queue.decide([number], True, "cli")

    assert carry_out(queue, project, number)
    assert ("failed", b"one\n") == (queue.recent()[0].stage, (folder / "src/a.py").read_bytes())


@pytest.mark.parametrize("path", ["../outside/a.py", "/etc/passwd", "out/a.py", "link/../../outside/a.py", "loop/a"])
def test_no_path_leads_out(folder: Path, project: Project, path: str) -> None:
    (folder / "out").symlink_to("../outside")
    (folder / "loop").symlink_to("loop")

    with pytest.raises(BadRequest):
        project.resolve(path)
    for unresolved in (path, "out/new"):
        with pytest.raises((Stale, OSError)):  # even if nobody has resolved it
            project.put(FileOrder(unresolved, NOTHING, FileState("file", 0o644, ""), b"x"), ".leeward-x")
    assert ["a.py"] == os.listdir(folder.parent / "outside")


def test_links_are_resolved_beneath(project: Project, folder: Path) -> None:
    (folder / "alias.py").symlink_to("link/a.py")

    assert "src/a.py" == project.resolve("link/a.py").path
    assert "alias.py" == project.resolve("alias.py").path
    assert "src/new" == project.resolve("link/new").path


CRASH = """
    import os, sys
    from leeward.apps.approvals.carrying.apply import Project, carry_out
    from leeward.apps.approvals.queue.queue import ApprovalQueue
    state, folder, number, step = sys.argv[1:]
    def fault(at):
        if at == step:
            os._exit(77)
    queue = ApprovalQueue(state)
    carry_out(queue, Project(folder, fault), int(number), fault)
    os._exit(0)
"""
STEPS = ("begin", "begun", "write", "place", "clean", "sync", "finished", "none")


def recovered(queue: ApprovalQueue, project: Project) -> list[int]:
    """The ids of what another program had begun, and that was seen to."""
    return [request.id for request, way in queue.interrupted()
            if "filesystem" == request.category and recover(queue, project, request, way)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("new", [False, True], ids=["changed", "created"])
def test_an_end_at_any_step_applies_it_once(folder: Path, tmp_path: Path, step: str, new: bool) -> None:
    """The program ends there, as by SIGKILL; the next one finds out what became of it."""
    state, path = str(tmp_path / "approvals"), "src/new.py" if new else "src/a.py"
    queue, project = ApprovalQueue(state), Project(str(folder))
    number = asked(queue, write_order(path, project.state(path), b"two\n")).id
    queue.decide([number], True, "cli")
    queue.close()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(CRASH), state, str(folder), str(number), step],
                          timeout=60, check=False)
    assert (0 if "none" == step else 77) == done.returncode

    queue = ApprovalQueue(state)
    before = tree(folder) if step in ("clean", "sync") else {}
    assert ([] if step in ("begin", "finished", "none") else [number]) == recovered(queue, project)
    if "begin" == step:
        assert [number] == [each.id for each in queue.due()]
        assert carry_out(queue, project, number)
    if before:  # what was done isn't done again
        assert before[path] == tree(folder)[path] or new
        assert before[path][2] == (folder / path).stat().st_ino  # type: ignore[index]
    assert b"two\n" == (folder / path).read_bytes()
    assert not list(folder.rglob(".leeward-*"))
    found = queue.get(number)
    assert found is not None
    assert ("approved", "applied") == (found.status, found.stage)
    assert [] == recovered(queue, project)
    assert not carry_out(queue, project, number)
    queue.close()
    project.close()


def test_after_a_restart_no_later_file_is_overwritten(folder: Path, queue: ApprovalQueue) -> None:
    project = Project(str(folder))
    number = asked(queue, write_order("src/a.py", project.state("src/a.py"), b"two\n")).id
    queue.decide([number], True, "cli")
    assert queue.begin(number, ".leeward-x") is not None
    (folder / "src" / ".leeward-x").write_bytes(b"tw")
    (folder / "src/a.py").write_bytes(b"mine\n")

    assert [number] == recovered(queue, project)
    assert b"mine\n" == (folder / "src/a.py").read_bytes()
    assert ["a.py"] == os.listdir(folder / "src")
    assert "stale" == (queue.get(number) or queue.recent()[0]).decided_by
    project.close()


def test_a_full_disk_is_a_failure_and_leaves_no_file(folder: Path, queue: ApprovalQueue) -> None:
    def full(step: str) -> None:
        if "place" == step:
            raise OSError(28, "No space left on device")

    project = Project(str(folder), full)
    found = applied(queue, project, write_order("src/a.py", project.state("src/a.py"), b"two\n"))

    assert ("approved", "failed", "'src/a.py': no space left on device") == (found.status, found.stage, found.note)
    assert ["a.py"] == os.listdir(folder / "src")
    assert b"one\n" == (folder / "src/a.py").read_bytes()
    project.close()


def test_orders_that_are_not_of_files_are_left_alone(project: Project, queue: ApprovalQueue) -> None:
    """The runner of commands begins and finishes those."""
    number = queue.submit(NewRequest(invocation("ls"), "run", payload=b"ls")).id
    queue.decide([number], True, "cli")
    with pytest.raises(BadRequest):
        carry_out(queue, project, number)
    assert [number] == [each.id for each in queue.due()]
    queue.begin(number)
    assert [] == recovered(queue, project)
    assert not carry_out(queue, project, 99)


def test_a_file_in_the_middle_of_a_path_is_not_read(folder: Path, project: Project,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox asks for a path that goes on behind a huge file, as often as it likes."""
    (folder / "huge").touch()
    os.truncate(folder / "huge", 1 << 40)
    monkeypatch.setattr(os, "read", lambda fd, size: pytest.fail("it is read"))

    assert "huge/x" == project.resolve("huge/x").path
    assert "src/x" == project.resolve("link/x").path
    assert FileState("file", stat.S_IMODE((folder / "huge").stat().st_mode)) == project.state("huge")
    with pytest.raises(BadRequest, match="isn't there"):
        delete_order("huge/x", project.state("huge/x"))


def test_reading_a_file_that_grows_meanwhile_ends_at_the_bound(folder: Path, project: Project,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    growing, read = folder / "growing", os.read
    growing.write_bytes(b"x")

    def read_and_append(fd: int, size: int) -> bytes:
        with growing.open("ab") as file:
            file.write(b"x" * 1000)
        return read(fd, size)

    monkeypatch.setattr("leeward.apps.approvals.carrying.apply.MOST_CONTENT", 10_000)
    monkeypatch.setattr("leeward.apps.approvals.carrying.apply.os.read", read_and_append)

    assert ("file", "") == (project.state("growing").type, project.state("growing").sha256)
    with pytest.raises(BadRequest, match="10000 bytes"):
        project.content("growing")
