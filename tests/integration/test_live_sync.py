"""Live sync, with a real daemon and a real sandbox: what flows to the host, what flows in, and what doesn't."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.approvals import ServedApprovals
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.waiting import poll_until
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest

pytestmark = pytest.mark.needs("extra-web")

DAEMON = ("--pool-size", "2")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "src").mkdir(parents=True)
    for name in ("one", "two", "src/three"):
        (made / name).write_text(f"{name}\n")
    return made


@pytest.fixture
def box(service: ServedApprovals, project: Path) -> Iterator[Sandbox]:
    made = service.open(project, sync=True)
    yield made
    close(service, made)


def close(service: ServedApprovals, box: Sandbox) -> None:
    try:
        service.connection.close_sandbox(box.detach())
    except BadRequest:
        pass  # the test has ended it


def sync_of(service: ServedApprovals, box: Sandbox) -> dict[str, Any]:
    rows = service.connection.call("GET", "/api/sandboxes")["sandboxes"]
    found: dict[str, Any] = next(row["sync"] for row in rows if row["sandbox"] == box.id)
    return found


def noted(service: ServedApprovals, box: Sandbox, path: str) -> dict[str, Any]:
    """The note about *path*, once there is one."""
    found = list[dict[str, Any]]()

    def look() -> bool:
        found[:] = [note for note in sync_of(service, box)["notes"] if note["path"] == path]
        return bool(found)
    poll_until(look, f"a note about {path}")
    return found[0]


def has(path: Path, text: str | None) -> None:
    def look() -> bool:
        try:
            return path.read_text() == text
        except FileNotFoundError:
            return text is None
    poll_until(look, f"{path.name} with {text!r}")


def test_changes_flow_to_the_host_and_back(service: ServedApprovals, box: Sandbox, project: Path) -> None:
    box.shell("echo changed > one; rm two; mkdir -p new/deep; echo n > new/deep/file; "
              "mkdir -p .git/hooks node_modules; echo x > .git/hooks/pre-push; echo x > node_modules/a")
    has(project / "new/deep/file", "n\n")
    has(project / "one", "changed\n")
    has(project / "two", None)
    box.shell("rm -r new; echo again > one")
    has(project / "one", "again\n")
    poll_until(lambda: not (project / "new").exists(), "a folder that is gone")

    (project / "one").write_text("the host's\n")  # a file that the sandbox has its own copy of
    way = project / "way"
    way.write_text("by a rename\n")
    os.rename(way, project / "src/three")
    (project / "src/host").write_text("host\n")
    poll_until(lambda: b"the host's\n" == box.files.read("one"), "the host's edit inside")
    poll_until(lambda: b"by a rename\n" == box.files.read("src/three"), "the host's other edit inside")
    poll_until(lambda: box.files.exists("src/host"), "the host's new file inside")
    (project / "one").unlink()
    poll_until(lambda: not box.files.exists("one"), "a deletion inside")
    box.shell("echo mine >> src/three")
    has(project / "src/three", "by a rename\nmine\n")

    assert not (project / ".git").exists()
    assert not (project / "node_modules").exists()
    assert [] == sync_of(service, box)["notes"]
    rows = [row for row in service.audit() if "sync" == row["action"] and row["sandbox"] == box.id]
    assert {"to the host", "to the sandbox"} == {row["metadata"].get("way") for row in rows}
    assert [] == list(project.glob("**/.leeward-*"))


def test_a_conflict_is_shown_and_no_file_is_written(service: ServedApprovals, box: Sandbox, project: Path) -> None:
    box.shell("echo synced > one")
    has(project / "one", "synced\n")
    os.kill(service.process.pid, signal.SIGSTOP)  # both sides change it between two looks
    try:
        box.shell("echo inside > one")
        (project / "one").write_text("outside\n")
    finally:
        os.kill(service.process.pid, signal.SIGCONT)

    assert "conflict" == noted(service, box, "one")["kind"]
    box.shell("echo later > two")
    has(project / "two", "later\n")  # a round later
    assert "outside\n" == (project / "one").read_text()
    assert b"inside\n" == box.files.read("one")
    assert "conflict: one" in service.run("sandboxes").stdout
    asked = service.connection.call("POST", "/api/sync/files", {"sandbox": box.id})["requests"]
    assert ["one"] == [row["subject"]["path"] for row in asked]
    service.decide(asked[0]["id"])  # the operator takes the sandbox's
    has(project / "one", "inside\n")
    poll_until(lambda: [] == sync_of(service, box)["notes"], "a conflict that is over")
    assert "conflict" in {row["decision"] for row in service.audit() if row["sandbox"] == box.id}


def test_changes_that_a_person_has_to_see_are_requested(service: ServedApprovals, box: Sandbox, project: Path) -> None:
    box.shell("printf 'x\\n' > run; chmod 755 run; ln -s one link; mkdir .husky; echo x > .husky/pre-commit; "
              "ln -s /etc/passwd out; mkdir -p a/b; echo x > a/b/.unheard-of; echo x > a/Makefile; echo x > a/HEAD; "
              "echo plain > plain")
    has(project / "plain", "plain\n")
    for path in ("run", "link", ".husky/pre-commit", "a/b/.unheard-of", "a/Makefile", "a/HEAD"):
        note = noted(service, box, path)
        assert "asked" == note["kind"], note
        assert not os.path.lexists(project / path)
    assert "refused" == noted(service, box, "out")["kind"]
    assert not os.path.lexists(project / "out")
    service.decide(noted(service, box, "run")["request"])
    has(project / "run", "x\n")
    assert (project / "run").stat().st_mode & 0o111
    poll_until(lambda: "run" not in {note["path"] for note in sync_of(service, box)["notes"]}, "a note that is over")


def test_a_denied_path_stays_away(service: ServedApprovals, box: Sandbox, project: Path) -> None:
    service.connection.call("POST", "/api/rules", {"rule": "filesystem(secret*)", "effect": "deny"})
    try:
        box.shell("echo x > secrets; echo plain > plain")
        assert "denied" == noted(service, box, "secrets")["kind"]
        has(project / "plain", "plain\n")
        assert not (project / "secrets").exists()
    finally:
        service.connection.call("DELETE", "/api/rules", {"rule": "filesystem(secret*)"})
    has(project / "secrets", "x\n")


def test_no_file_is_synced_unless_the_operator_allows_it(service: ServedApprovals, project: Path) -> None:
    plain, synced = service.open(project), service.open(project, sync=True, sync_after=".git/HEAD")
    try:
        assert sync_of(service, plain) is None
        plain.shell("echo no > no")
        synced.shell("echo yes > yes")
        service.connection.call("POST", "/api/sync/files", {"sandbox": synced.id})  # waits for some rounds
        assert "waiting" == sync_of(service, synced)["state"]
        assert not (project / "yes").exists()
        synced.shell("mkdir .git; echo ref > .git/HEAD")
        has(project / "yes", "yes\n")
        assert not (project / "no").exists()
        for options in ({"sync": "yes"}, {"sync_after": "x"}, {"sync": True, "sync_after": "../x"}):
            with pytest.raises(BadRequest):
                service.connection.open_sandbox(str(project), **options)
    finally:
        close(service, plain)
        close(service, synced)


def test_a_sandbox_that_writes_without_end_delays_no_other(service: ServedApprovals, box: Sandbox, project: Path,
                                                           tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    second = service.open(other, sync=True)
    try:
        box.start("i=0; while :; do i=$((i+1)); echo $i > f$((i % 30)); echo $i >> log; done")
        second.shell("echo quick > quick")
        has(other / "quick", "quick\n")
        poll_until(lambda: (project / "log").exists(), "a file that changes all the time")
    finally:
        close(service, second)


def test_the_end_of_a_sandbox_is_a_last_pass(service: ServedApprovals, project: Path) -> None:
    done = service.run("run", "--sync", str(project), "--", "sh", "-c", "echo last > one; mkdir d; echo d > d/d")
    assert 0 == done.returncode, done.stderr
    assert "last\n" == (project / "one").read_text()
    made = service.open(project, sync=True)
    made.shell("echo closed > two")
    close(service, made)
    assert "closed\n" == (project / "two").read_text()


def test_the_end_of_the_service_is_a_last_pass(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    with ServedApprovals(daemon, tmp_path) as service:
        box = service.open(project, sync=True)
        box.shell("echo ended > one")
        service.process.terminate()
        assert 0 == service.process.wait(PATIENCE)
        assert "ended\n" == (project / "one").read_text()
        box.detach()
