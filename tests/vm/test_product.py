"""
What people use, once each, on whatever kernel this is: a live sandbox, a kernel, an overlay, egress, approvals, an agent.

An overlay needs Linux 6.6, and approvals have one; a folder of the host that a daemon of root's shows needs 5.12. An
older kernel's refusal says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import egress, features
from kit.agents import AgentHome
from kit.approvals import ServedApprovals
from kit.egress import Servers
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until
from leeward.errors import LeewardError

#: A guest is slow, and slower beside others: who waits for the one worker waits on, and for a name.
PATIENT = {"RES_OPTIONS": "timeout:30 attempts:5"}

CONFIG = """\
pool_size = 1
queue_timeout = 300
[egress.web]
allow = ["http://web.example.org:{port}"]
addresses = ["127.0.0.1/32"]
"""

ASK = ("from leeward.approvals import Agent\n"
       'print(Agent().request_permission("sandbox", action="mine", wait=False)["status"])')


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG.format(port=host.http)) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "file").write_text("old\n")
    return made


#: Whether this kernel refuses a folder of the host; the words that say so.
NO_FOLDER, WHY = 0 == os.geteuid() and not features.is_met("kernel>=5.12"), "needs Linux 5.12"


def where_there_are_folders() -> AbstractContextManager[Any]:
    """On older kernels the refusal is what is right."""
    return pytest.raises(LeewardError, match=WHY) if NO_FOLDER else nullcontext()


def where_there_are_overlays() -> AbstractContextManager[Any]:
    """As above."""
    return (where_there_are_folders() if NO_FOLDER or features.is_met("kernel>=6.6") else
            pytest.raises(LeewardError, match=r"need Linux 6\.6"))


def test_a_live_sandbox_has_files_programs_and_a_kernel(box: leeward.Sandbox) -> None:
    box.files.write("a", b"1\n")

    assert "1\n2\n" == box.shell("echo 2 >>a; cat a").stdout_text
    kernel = box.kernel()
    assert kernel.execute("x = 20").ok
    assert "42\n" == kernel.execute("print(2 * x + 2)").stdout_text
    assert b"1\n2\n" == box.files.read("a")


def test_a_folder_of_the_host_is_written(daemon: LiveDaemon, project: Path) -> None:
    with where_there_are_folders(), leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
        assert box.shell("echo new >file").ok
        assert "new\n" == (project / "file").read_text()


def test_an_overlay_is_compared_kept_and_applied(daemon: LiveDaemon, project: Path) -> None:
    with where_there_are_overlays(), leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        assert box.shell("echo new >file").ok
        box.checkpoint("one")
        assert box.shell("rm file").ok
        box.restore("one")
        assert ["file"] == [change.path for change in box.diff()]
        assert "old\n" == (project / "file").read_text()
        box.apply()
        assert "new\n" == (project / "file").read_text()


def test_egress_reaches_what_its_policy_names(daemon: LiveDaemon, host: Servers) -> None:
    ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).status)"
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        for name, ended in (("web", True), ("evil", False)):
            url = f"http://{name}.example.org:{host.http}/"
            got = box.run(["python3", "-c", ask, url], timeout=200, env=PATIENT)
            assert (ended, "200\n" * ended) == (got.ok, got.stdout_text), got.stderr_text
        assert 200 == box.fetch(f"http://web.example.org:{host.http}/").status
        with pytest.raises(leeward.FetchFailed, match="not in allowlist"):
            box.fetch(f"http://evil.example.org:{host.http}/")


@pytest.mark.needs("extra-web")
def test_approvals_write_what_was_approved(service: ServedApprovals, project: Path) -> None:
    with where_there_are_overlays():
        box = service.open(project)
        got = box.run(["python3", "-c", ASK], timeout=200)
        assert "pending\n" == got.stdout_text, got.stderr_text
        assert box.shell("echo new >file").ok
        for row in service.connection.call("POST", "/api/sync/files", {"sandbox": box.id})["requests"]:
            service.decide(row["id"])
        poll_until(lambda: "new\n" == (project / "file").read_text(), "the service writes it by itself")
        service.connection.close_sandbox(box.detach())


@pytest.mark.needs("user-namespaces")
def test_an_agent_works_in_its_project(home: AgentHome) -> None:
    got = home.run("start", "sh", ".", "--", "-c", "cat >made; exit 7", input="given")

    if NO_FOLDER:
        assert WHY in got.stderr
        return
    assert 7 == got.returncode, got.stderr
    assert "given" == (home.project / "made").read_text()
