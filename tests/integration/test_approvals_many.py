"""Many changes of one sandbox: each ends on the host when it is approved, whatever dies between the run and the decision."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kit.approvals import ServedApprovals
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.waiting import poll_until
from leeward.apps.approvals.bridge.bridge import BridgeRequest
from leeward.apps.approvals.queue import queue as queues
from leeward.apps.approvals.queue.approval_request import IntakeBounds
from leeward.apps.approvals.service import ApprovalService
from leeward.apps.audit.record import AuditRecord
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, SandboxOver

pytestmark = pytest.mark.needs("extra-web")

#: More than a sandbox may have pending by its own requests, and than one transaction takes in.
SOME = 130

#: More than any page of requests has: 100 and 500.
MANY = 10_000 if os.environ.get("LEEWARD_LONG") else 1_200

DAEMON = ("--pool-size", "2")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "file").write_text("old\n")
    (made / "gone").write_text("old\n")
    return made


def line(count: int) -> str:
    return (f"mkdir -p d; i=0; while [ $i -lt {count} ]; do echo content $i >d/$i; i=$((i+1)); done; echo new >file;"
            " rm gone")


def is_done(project: Path, count: int) -> bool:
    names = {path.name for path in project.rglob("*") if path.is_file()}
    return names == {"file", *map(str, range(count))} and "new\n" == (project / "file").read_text()


def check(project: Path, count: int) -> None:
    assert is_done(project, count)
    for number in range(0, count, 7):
        assert f"content {number}\n" == (project / "d" / str(number)).read_text()


def run(service: ServedApprovals, project: Path, count: int) -> None:
    done = service.run("run", "--daemon", str(service.daemon.socket), str(project), "--", "sh", "-c", line(count),
                       seconds=PATIENCE + count / 20)
    assert 0 == done.returncode, done.stderr
    assert f"{count + 2} requests about files wait: leeward approvals approve --all filesystem" in done.stderr
    assert "old\n" == (project / "file").read_text()


def approve_all(service: ServedApprovals, project: Path, count: int) -> None:
    assert 0 == service.run("approve", "--all", "filesystem", seconds=PATIENCE + count / 20).returncode
    poll_until(lambda: is_done(project, count), "files on the host", PATIENCE + count / 20)
    check(project, count)


@pytest.mark.timeout(900)
def test_thousands_of_changes_end_on_the_host(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path) as service:
        run(service, project, MANY)
        approve_all(service, project, MANY)


def test_nothing_is_lost_when_the_service_is_killed_before_the_decision(daemon: LiveDaemon, project: Path,
                                                                        tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path) as service:
        run(service, project, SOME)
        service.process.send_signal(signal.SIGKILL)
        service.process.wait(PATIENCE)
    with ServedApprovals(daemon, tmp_path) as service:
        approve_all(service, project, SOME)


def test_nothing_is_lost_when_the_service_is_stopped_before_the_decision(daemon: LiveDaemon, project: Path,
                                                                         tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path) as service:
        run(service, project, SOME)
        assert 0 == service.end()
    with ServedApprovals(daemon, tmp_path) as service:
        approve_all(service, project, SOME)


def test_nothing_is_lost_when_the_daemon_is_killed_before_the_decision(project: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with LiveDaemon(tmp_path / "d", "--pool-size", "1") as daemon, ServedApprovals(daemon, tmp_path) as service:
        run(service, project, SOME)
        daemon.process.kill()
        daemon.process.wait(PATIENCE)
        approve_all(service, project, SOME)


def test_what_has_no_room_is_asked_for_when_the_requests_before_it_are_decided(
        daemon: LiveDaemon, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox stays until then; what was denied isn't asked for again."""
    monkeypatch.setattr(queues, "COLLECTED", IntakeBounds(pending=3, all_pending=100, bytes=1 << 20))
    queue, journal = queues.ApprovalQueue(str(tmp_path / "q")), AuditRecord(str(tmp_path / "a"))
    service = ApprovalService(queue, journal, str(tmp_path / "q"), socket=str(daemon.socket))
    service.answering = lambda _sandbox: answered
    service.start()
    try:
        name = service.open_sandbox(str(project))["sandbox"]
        box = Sandbox.attach(name, socket=daemon.socket)
        box.shell("for i in 1 2 3 4 5 6 7; do echo $i >$i; done")
        box.start(["sleep", "1000"])
        found = service.collect_files(name)
        assert (3, 4, False) == (len(found.requests), found.more, found.again)
        assert service.close_sandbox(name, left=True)
        poll_until(lambda: ["leeward approvals"] == [row["title"] for row in box.processes() if not row["over"]],
                   "the end of what it has started")
        queue.decide([found.requests[0].id], False, "cli")
        while name in [row["sandbox"] for row in service.sandboxes()]:
            queue.decide([each.id for each in queue.pending()], True, "cli")
        queue.decide([each.id for each in queue.pending()], True, "cli")  # it ends when the last ones are asked for
        poll_until(lambda: {"2", "3", "4", "5", "6", "7", "file", "gone"} == {one.name for one in project.iterdir()},
                   "all but the one that was denied")
        poll_until(lambda: is_over(box), "its end, before which the service's list has forgotten it")
        box.detach()
    finally:
        service.stop()
        poll_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("bridge-")], "no bridge is left")
        queue.close()
        journal.close()


def is_over(box: Sandbox) -> bool:
    try:
        box.info()
    except SandboxOver:
        return True
    return False


def answered(_request: BridgeRequest) -> Future[tuple[int, Any]]:
    done = Future[tuple[int, Any]]()
    done.set_result((200, {}))
    return done


def test_what_cannot_be_asked_for_stays_in_the_sandbox(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    """Also when the service is stopped; a FIFO isn't worth keeping."""
    with ServedApprovals(daemon, tmp_path) as service:
        command = ["run", "--daemon", str(daemon.socket), str(project), "--", "sh", "-c"]
        done = service.run(*command, "mkfifo fifo; echo new >file")
        assert "stays" not in done.stderr, done.stderr
        done = service.run(*command, "head -c 17000000 /dev/zero >big; echo new >file")
        assert "big: can't be asked for" in done.stderr, done.stderr
        name = done.stderr.split("`leeward diff ")[1].split("`")[0]
        assert 0 == service.end()
    with Sandbox.attach(name, socket=daemon.socket) as box:
        assert ["big"] == [change.path for change in box.apply(["big"])]
    assert 17_000_000 == (project / "big").stat().st_size


def test_work_stays_when_nobody_can_be_asked_at_the_end(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path) as service:
        running = service.begin("run", "--daemon", str(daemon.socket), str(project), "--", "sh", "-c",
                                "echo new >file; echo begun; read go")
        assert running.stdout is not None
        assert "begun\n" == running.stdout.readline()
        service.process.kill()
        service.process.wait(PATIENCE)
        _, said = running.communicate("go\n", timeout=PATIENCE)
        assert running.returncode
        name = said.split("`leeward diff ")[1].split("`")[0]
    with Sandbox.attach(name, socket=daemon.socket) as box:
        assert ["file"] == [change.path for change in box.apply()]
    assert "new\n" == (project / "file").read_text()


def test_a_service_adopts_the_sandboxes_of_one_that_was_killed(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    """The run goes on, its programs can ask again, and at its end its changes and pushes are asked for."""
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "--quiet", "--bare", str(tmp_path / "origin.git")], check=True)
    for argv in (["init", "--quiet"], ["add", "-A"], ["commit", "--quiet", "-m", "one"],
                 ["remote", "add", "origin", str(tmp_path / "origin.git")]):
        subprocess.run([*git, *argv], cwd=project, check=True)
    use = ("echo begun; read go; git checkout -q -b other; echo new >file; git -c user.name=n -c user.email=n@e.org commit"
            " -qam two; git push -q origin other; python3 -c 'from leeward.approvals import Agent; print(Agent()"
            '.request_permission("sandbox", action="mine", wait=False)["status"])\'')
    with ServedApprovals(daemon, tmp_path) as service:
        running = service.begin("run", "--daemon", str(daemon.socket), str(project), "--", "sh", "-c", use)
        assert running.stdout is not None
        assert "begun\n" == running.stdout.readline()
        service.process.kill()
        service.process.wait(PATIENCE)
        with ServedApprovals(daemon, tmp_path, socket=service.socket) as other:
            [row] = other.connection.call("GET", "/api/sandboxes")["sandboxes"]
            assert (True, True, str(project)) == (row["bridge"], row["git"], row["project"])
            out, said = running.communicate("go\n", timeout=PATIENCE)
            assert (0, "pending\n") == (running.returncode, out), said
            assert ["filesystem", "git", "sandbox"] == sorted(row["category"] for row in other.pending())
            assert [] == other.connection.call("GET", "/api/sandboxes")["sandboxes"]
            assert 0 == other.run("approve", "--all", "filesystem").returncode
            poll_until(lambda: "new\n" == (project / "file").read_text(), "the file")
            with pytest.raises(BadRequest, match="leeward apply"):
                other.connection.collect_files(row["sandbox"])
