"""What a real sandbox has changed in its copy of a project, asked for, approved and applied file by file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from leeward.apps.approvals.carrying.apply import Project, carry_out
from leeward.apps.approvals.queue.approval_request import ApprovalRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import ProjectPath
from leeward.apps.approvals.sync.changes import request_changes
from leeward.errors import BadRequest

DAEMON = ("--pool-size", "2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "sub" / "deep").mkdir(parents=True)
    (made / "file").write_text("old\n")
    (made / "script").write_text("echo\n")
    (made / "sub" / "one").write_text("1\n")
    (made / "sub" / "deep" / "two").write_text("2\n")
    return made


@pytest.fixture
def project(folder: Path) -> Iterator[Project]:
    made = Project(str(folder))
    yield made
    made.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ApprovalQueue]:
    made = ApprovalQueue(str(tmp_path / "approvals"))
    yield made
    made.close()


def paths(requests: list[ApprovalRequest]) -> list[str]:
    return [request.subject.path for request in requests if isinstance(request.subject, ProjectPath)]


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, bytes | str]]:
    """Names, modes, times and content."""
    found: dict[str, tuple[int, int, int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        name, mode = str(path.relative_to(folder)), stat.S_IMODE(about.st_mode)
        found[name] = mode, about.st_mtime_ns, about.st_ctime_ns, content
    return found


def test_the_host_changes_by_approval_alone(daemon: LiveDaemon, folder: Path, project: Project,
                                            queue: ApprovalQueue) -> None:
    before = snapshot(folder)
    with leeward.Sandbox(socket=daemon.socket, workdir=folder, overlay=True) as box:
        made = box.shell("echo new >file; chmod +x script; rm -r sub; mkdir -p made/in; echo x >made/in/x; mkdir empty;"
                         " ln -s file link; rm file; printf 'b' >file")
        assert 0 == made.exit_code, made.stderr_text
        asked = request_changes(queue, box, project, reason="because")
        assert before == snapshot(folder)
        assert ["sub/one", "sub/deep/two", "sub/deep", "sub",
                "empty", "file", "link", "made/in/x", "script"] == paths(asked)
        assert ["it can be run: rwxr-xr-x"] == asked[-1].metadata["remarks"]
        # What the sandbox does after it has asked changes nothing.
        box.shell("echo evil >file; echo evil >made/in/x; rm link; ln -s script link; chmod 777 script")
        queue.decide([each.id for each in asked], True, "cli")
        for request in queue.due():
            assert carry_out(queue, project, request.id)

    assert {"applied"} == {each.stage for each in queue.recent()}
    after = snapshot(folder)
    assert ["empty", "file", "link", "made", "made/in", "made/in/x", "script"] == list(after)
    assert (b"b", "file", b"x\n") == (after["file"][3], after["link"][3], after["made/in/x"][3])
    assert 0o755 == after["script"][0]


def test_a_file_that_the_host_has_changed_meanwhile_is_shown_or_stale(daemon: LiveDaemon, folder: Path,
                                                                      project: Project, queue: ApprovalQueue) -> None:
    with leeward.Sandbox(socket=daemon.socket, workdir=folder, overlay=True) as box:
        assert 0 == box.shell("echo new >file; echo new >sub/one; echo new >script").exit_code
        (folder / "file").write_text("mine\n")  # before it is asked for
        asked = {request.subject: request for request in request_changes(queue, box, project)}
        (folder / "sub" / "one").write_text("mine\n")  # and after
        queue.decide([each.id for each in asked.values()], True, "cli")
        for request in queue.due():
            carry_out(queue, project, request.id)

    assert ["the host's own was changed since the sandbox was opened"] == asked[ProjectPath("file")].metadata["remarks"]
    found = {request.subject: (request.status, request.decided_by) for request in queue.recent()}
    assert ("denied", "stale") == found[ProjectPath("sub/one")]
    assert ("approved", "cli") == found[ProjectPath("script")] == found[ProjectPath("file")]
    assert ["mine\n", "new\n"] == [(folder / name).read_text() for name in ("sub/one", "script")]


@pytest.mark.parametrize("line", ["ln -s /etc/passwd out", "ln -s ../../x out", "mkfifo out", "truncate -s 17M out"])
def test_c299_cannot_request_a_file_that_leads_out(daemon: LiveDaemon, folder: Path, project: Project,
                                                   queue: ApprovalQueue, line: str) -> None:
    """A link out, a FIFO, a file without end. The control: an ordinary file is taken."""
    with leeward.Sandbox(socket=daemon.socket, workdir=folder, overlay=True) as box:
        assert 0 == box.shell("echo new >file").exit_code
        assert ["file"] == paths(request_changes(queue, box, project))
        assert 0 == box.shell(line).exit_code
        with pytest.raises((BadRequest, leeward.RequestRejected)):
            request_changes(queue, box, project)
    assert ["file"] == paths(queue.recent())


def test_c303_cannot_reach_the_queue(daemon: LiveDaemon, folder: Path, tmp_path: Path, queue: ApprovalQueue) -> None:
    """The folder of requests isn't in a sandbox, by whichever path. The control: it is where the host has it."""
    state = tmp_path / "approvals"
    assert "requests.sqlite" in os.listdir(state)
    with leeward.Sandbox(socket=daemon.socket, workdir=folder, overlay=True) as box:
        for path in (state, f"/proc/self/root{state}", f"/proc/1/root{state}", "/workspace/../approvals"):
            found = box.run(["ls", str(path)])
            assert 0 != found.exit_code
            assert b"sqlite" not in found.stdout
